// A plan put on the page: its sentences, table, pictures and what is to be copied.

import { $, element, makePicture, sample } from "./chart.js";
import { command } from "./command.js";
import { limitsAt, timesFlops } from "./counts.js";
import { knownInWords } from "./like.js";
import { amount, duration, fixed, flopsText, memoryText, typed } from "./numbers.js";
import { map } from "./map.js";
import { againstCost, againstMemory, isoflop, looksOf, measured } from "./pictures.js";
import { bestOf, optima } from "./solve.js";
import {
  answer,
  compared,
  costHead,
  drawn,
  inWords,
  safely,
  sentences,
  targetHead,
  verdictInWords,
} from "./words.js";

const pictures = {
  isoflop: makePicture("Loss against size"),
  memory: makePicture("Loss against memory"),
  map: makePicture("The best number of experts"),
  cost: makePicture("Loss against cost"),
  measured: makePicture("Predicted against measured"),
};
$("pictures").prepend(...Object.values(pictures).map(({ figure }) => figure));

// Shows {ask, plan}: what was asked and its plan.
export function showPlan(latest) {
  showAnswer(latest);
  showTable(latest);
  showCosts(latest);
  showTarget(latest);
  showCopies(latest);
}

function items(list, sentences) {
  list.replaceChildren(...sentences.map((sentence) => element("li", {}, sentence)));
  list.hidden = !sentences.length;
}

function showAnswer({ ask, plan }) {
  const { best } = plan;
  $("answer").textContent = answer(plan);
  items($("verdict"), verdictInWords(ask.data, plan));
  const { like } = ask;
  $("known-words").hidden = !like;
  $("known-words").textContent = like ? `${[knownInWords(like.counts), ...like.counts.notes].join("; ")}.` : "";
  items($("warnings"), plan.warnings);
  const tiles = [
    [String(best.n_experts), "experts"],
    [amount(best.n_active), "active parameters"],
    [amount(best.n_total), "parameters in total"],
    [amount(best.n_tokens), "training tokens"],
    [fixed(best.loss, 4), "loss, nats per token"],
    [memoryText(best.memory_bytes), "weights and cache"],
  ];
  const saved = best.n_experts > 1 && plan.dense?.flops_saved;
  if (saved) tiles.push([`${fixed(100 * saved, 0)}%`, "of a dense model's FLOPs saved"]);
  if (plan.chips) {
    const { training_hours, training_dollars } = best.cost;
    tiles.push([duration(training_hours), `of training on ${amount(plan.chips.count)} × ${plan.chips.kind}`]);
    if (training_dollars != null) tiles.push([dollars(training_dollars), "of training"]);
  }
  $("tiles").replaceChildren(
    ...tiles.map(([value, what]) => element("div", {}, element("dd", {}, value), element("dt", {}, what))),
  );
  items($("compared"), compared(plan));
  $("draws").textContent = plan.bootstrap ? `${drawn(ask.law, plan.bootstrap).replace(/:$/, "")}.` : "";
}

const dollars = (x) => (x < 0.01 ? "< 1 cent" : `$${amount(x)}`);

const limitedBy = { memory: "memory", chips: "chips", tokens: "tokens", plateau: "plateau", smallest: "smallest model" };

function showTable({ plan }) {
  const drawn = new Map((plan.bootstrap?.optima ?? []).map((row) => [row.n_experts, row]));
  const between = (values, write) => (values ? values.map(write).join(" to ") : "–");
  const head = ["E", "active", "total", "tokens", "loss", "memory", "active within 0.1% of the best", "bound by"];
  if (plan.bootstrap) head.splice(5, 0, "loss, interval", "best in");
  const outside = plan.optima.map((row) =>
    inWords(row.extrapolation.filter(({ column }) => column !== "training_flops")),
  );
  if (outside.some(Boolean)) head.push("outside the fitted range");
  const lines = plan.optima.map((row, i) => {
    const cells = [amount(row.n_active), amount(row.n_total), amount(row.n_tokens), fixed(row.loss, 4)];
    const of = drawn.get(row.n_experts);
    if (plan.bootstrap)
      cells.push(
        between(of?.loss, (v) => fixed(v, 4)),
        of ? `${of.best_in_draws} of ${plan.bootstrap.draws}` : "–",
      );
    cells.push(
      memoryText(row.memory_bytes),
      between(row.near_optimal_n_active, amount),
      limitedBy[row.size_bound] ?? "–",
    );
    const best = row === plan.best ? { class: "best", "aria-label": "best" } : {};
    const line = element(
      "tr",
      best,
      element("th", { scope: "row" }, String(row.n_experts)),
      ...cells.map((cell) => element("td", {}, cell)),
    );
    if (outside.some(Boolean)) line.append(element("td", { class: "words" }, outside[i]));
    return line;
  });
  for (const { n_experts, why } of plan.infeasible) {
    const cell = element("td", { colspan: head.length - 1, class: "words" }, `not feasible: ${why}`);
    lines.push(element("tr", {}, element("th", { scope: "row" }, String(n_experts)), cell));
  }
  $("table").replaceChildren(
    element("thead", {}, element("tr", {}, ...head.map((word) => element("th", { scope: "col" }, word)))),
    element("tbody", {}, ...lines),
  );
}

// A table: head, and rows of cells as text, the first of each its heading; best: the row to mark.
export function fill(table, head, rows, best) {
  const lines = rows.map(([first, ...cells], i) =>
    element(
      "tr",
      i === best ? { class: "best", "aria-label": "best" } : {},
      element("th", { scope: "row" }, first),
      ...cells.map((cell) => element("td", {}, cell)),
    ),
  );
  table.replaceChildren(
    element("thead", {}, element("tr", {}, ...head.map((word) => element("th", { scope: "col" }, word)))),
    element("tbody", {}, ...lines),
  );
}

// What training costs and keeps in memory, and how fast the model answers, by number of experts.
function showCosts({ plan }) {
  $("costs").hidden = !plan.chips;
  if (!plan.chips) return;
  const head = ["E", "training", "price", "training takes", "chips", "served on", "tokens/s alone", "tokens/s among many"];
  const rows = plan.optima.map(({ n_experts, cost }) => [
    String(n_experts),
    duration(cost.training_hours),
    cost.training_dollars == null ? "–" : dollars(cost.training_dollars),
    memoryText(cost.training_bytes),
    amount(cost.training_chips),
    amount(cost.serving_chips),
    ...Object.values(cost.tokens_per_second).map(amount),
  ]);
  fill($("cost-table"), head, rows, plan.optima.indexOf(plan.best));
  $("cost-head").textContent = costHead(plan.chips);
  $("cost-note").textContent = `${sentences.COST_NOTE}.`;
}

// What reaches the loss asked for, by number of experts.
function showTarget({ plan }) {
  const { target } = plan;
  $("target").hidden = !target;
  if (!target) return;
  const head = ["E", "active", "tokens", "training FLOPs", "inference FLOPs", "together"];
  const rows = target.optima.map((row) =>
    row.flops == null
      ? [String(row.n_experts), "never reaches it"]
      : [
          String(row.n_experts),
          amount(row.n_active),
          amount(row.n_tokens),
          ...[row.training_flops, row.inference_flops, row.flops].map((x) => flopsText(x)),
        ],
  );
  fill(
    $("target-table"),
    head,
    rows,
    target.optima.findIndex(({ n_experts }) => n_experts === target.best.n_experts),
  );
  $("target-head").textContent = targetHead(target, plan.constraints);
}

// Draws the pictures. runs: those to draw; change: sets fields when one is clicked.
export function showPictures({ ask, plan }, runs, change) {
  const experts = [...new Set([...ask.law.experts, ...ask.experts, ...(runs?.n_experts ?? [])])].sort((a, b) => a - b);
  const looks = looksOf(experts);
  const legend = ask.experts.map((e) => element("li", {}, sample(looks[e].share, looks[e].kind), `E = ${e}`));
  $("legend").replaceChildren(...legend);
  const choose = ({ flops, bytes }) =>
    change({
      ...(flops ? { flops: typed(+flops.toPrecision(3)) } : {}),
      memory_gb: typed(+(bytes / 1e9 / ask.devices).toPrecision(3)),
    });
  put(pictures.isoflop, () => isoflop(pictures.isoflop, ask, plan, looks, runs));
  put(pictures.memory, () => againstMemory(pictures.memory, ask, plan, looks, choose));
  put(pictures.map, () => map(pictures.map, { ...ask, limits: limitsAt(ask.limits, plan.best.n_experts) }, looks, choose));
  put(pictures.cost, () => againstCost(pictures.cost, ask, plan, looks, change));
  pictures.measured.figure.hidden = !runs;
  if (runs) put(pictures.measured, () => measured(pictures.measured, ask, looks, runs));
  const rows = gains(ask, plan);
  const most = Math.max(...rows.map(({ gain }) => gain ?? 0), 1e-12);
  $("gains").replaceChildren(
    ...rows.flatMap(({ name, gain, best }) => {
      const bar = element("i", { style: `width:${gain == null ? 0 : (100 * gain) / most}%` });
      const words =
        gain == null
          ? "is no limit"
          : `${fixed(gain, 4)} nats lower` +
            (best.n_experts === plan.best.n_experts ? "" : `, then E = ${best.n_experts}`);
      return [
        element("span", {}, `twice the ${name}`),
        element("span", { class: "bar" }, bar),
        element("span", {}, words),
      ];
    }),
  );
}

// Draws a picture with its note; the note of a picture that cannot be drawn says why.
function put(picture, drawIt) {
  picture.spec = null;
  picture.words.textContent = safely(drawIt) ?? "cannot be drawn for these limits";
  picture.canvas.hidden = picture.spec == null;
}

function showCopies({ ask, plan }) {
  $("command").textContent = command(ask.law, ask.state, ask);
  $("build-command").textContent = `${command(ask.law, ask.state, ask)} --emit_config=planned.py`;
  $("json").textContent = JSON.stringify(plan, null, 1);
}

// What doubling each limit would gain: [{name, gain in nats, best: the new optimum}]; gain null without a limit.
function gains({ law, shape, limits, experts }, plan) {
  const twice = (name) => {
    if (limits[name] == null) return null;
    const twice = name === "flops" ? timesFlops(limits, 2) : { ...limits, [name]: 2 * limits[name] };
    return bestOf(optima(law, shape, twice, experts));
  };
  return [
    ["FLOPs", "flops"],
    ["memory", "memory_bytes"],
    ["data", "max_tokens"],
  ].map(([name, limit]) => {
    const best = twice(limit);
    return { name, best, gain: best && Math.max(0, plan.best.loss - best.loss) };
  });
}
