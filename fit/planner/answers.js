// A plan put on the page: its sentences, tables, pictures and what is to be copied. answer: {data, state, options, plan}.

import { $, element, legendSample, makePicture } from "./chart.js";
import { planCommand } from "./command.js";
import { answerOf, chipsInWords, outsideInWords, savingsInWords, say } from "./messages.js";
import { verdictInWords, withErrors } from "./messages.js";
import { amount, duration, memoryText, typed } from "./numbers.js";
import { coloursOf, drawMemories, drawSizes } from "./pictures.js";

const pictures = { sizes: makePicture("Loss against size"), memories: makePicture("Loss against memory") };
$("pictures").append(pictures.sizes.figure, pictures.memories.figure);

export function showPlan(answer) {
  showSentences(answer);
  showTiles(answer.plan);
  showTable(answer.plan);
  showCosts(answer.plan);
  const command = planCommand(answer.state, answer.options);
  $("command").textContent = command;
  $("build-command").textContent = `${command} --emit_config=planned.py`;
  $("json").textContent = JSON.stringify(answer.plan, null, 1);
}

function showList(id, sentences) {
  $(id).replaceChildren(...sentences.map((sentence) => element("li", {}, sentence)));
  $(id).hidden = !sentences.length;
}

function showSentences({ data, options, plan }) {
  const { reference } = options;
  $("answer").textContent = answerOf(plan);
  showList("verdict", verdictInWords(data, plan));
  $("known-words").hidden = !reference;
  if (reference) {
    const counts = { ...reference.counts, cache: 2 * reference.counts.cache_elements_per_token };
    $("known-words").textContent = `${[say("KNOWN", counts), ...counts.notes].join("; ")}.`;
  }
  showList("warnings", plan.warnings);
  showList("compared", savingsInWords(plan));
}

const dollarsText = (x) => (x < 0.01 ? "< 1 cent" : `$${amount(x)}`);

function showTiles({ best, chips }) {
  const tiles = [
    [String(best.n_experts), "experts"],
    [amount(best.n_active), "active parameters"],
    [amount(best.n_total), "parameters in total"],
    [amount(best.n_tokens), "training tokens"],
    [best.loss.toFixed(4), "loss, nats per token"],
    [memoryText(best.memory_bytes), "weights and cache"],
  ];
  if (chips) {
    const { training_hours, training_dollars } = best.cost;
    tiles.push([duration(training_hours), `of training on ${amount(chips.count)} × ${chips.kind}`]);
    if (training_dollars != null) tiles.push([dollarsText(training_dollars), "of training"]);
  }
  const made = tiles.map(([value, what]) => element("div", {}, element("dd", {}, value), element("dt", {}, what)));
  $("tiles").replaceChildren(...made);
}

// Fills a table: head, and rows of cells as text, the first of each its heading. The last cell of a short row spans the
// rest. best: the row to mark.
export function fillTable(id, head, rows, best) {
  const lines = rows.map(([first, ...cells], i) => {
    const line = element("tr", {}, element("th", { scope: "row" }, first), ...cells.map((cell) => element("td", {}, cell)));
    const missing = head.length - 1 - cells.length;
    if (missing > 0) withWords(line.lastChild).setAttribute("colspan", missing + 1);
    if (i === best) {
      line.classList.add("best");
      line.setAttribute("aria-label", "best");
    }
    return line;
  });
  const headings = head.map((word) => element("th", { scope: "col" }, word));
  $(id).replaceChildren(element("thead", {}, element("tr", {}, ...headings)), element("tbody", {}, ...lines));
}

function withWords(cell) {
  cell.classList.add("words");
  return cell;
}

const BOUNDS = { memory: "memory", chips: "chips", tokens: "tokens", smallest: "smallest model" };

// The best model of each number of experts.
function showTable({ optima, infeasible, best, bootstrap }) {
  const columns = [
    ["E", (row) => String(row.n_experts)],
    ["active", (row) => amount(row.n_active)],
    ["total", (row) => amount(row.n_total)],
    ["tokens", (row) => amount(row.n_tokens)],
    ["loss", (row) => row.loss.toFixed(4)],
    ["memory", (row) => memoryText(row.memory_bytes)],
    ["bound by", (row) => BOUNDS[row.size_bound] ?? "–"],
  ];
  if (bootstrap) {
    const intervalOfLoss = (row) => drawn(row)?.loss.map((loss) => loss.toFixed(4)).join(" to ") ?? "–";
    const drawn = (row) => bootstrap.optima.find(({ n_experts }) => n_experts === row.n_experts);
    const wins = (row) => `${drawn(row)?.best_in_draws ?? 0} of ${bootstrap.draws}`;
    columns.splice(5, 0, ["loss, interval", intervalOfLoss], ["best in", wins]);
  }
  const outside = (row) => outsideInWords(row.extrapolation.filter(({ column }) => column !== "training_flops"));
  if (optima.some(outside)) columns.push(["outside the fitted range", outside]);
  const rows = optima.map((row) => columns.map(([, write]) => write(row)));
  for (const { n_experts, why } of infeasible) rows.push([String(n_experts), `not feasible: ${why}`]);
  fillTable("table", columns.map(([name]) => name), rows, optima.indexOf(best));
}

// What training costs and keeps in memory, and how fast the model answers, by number of experts.
function showCosts({ chips, optima, best }) {
  $("costs").hidden = !chips;
  if (!chips) return;
  const head = ["E", "training", "price", "training takes", "chips", "served on", "tokens/s alone", "tokens/s among many"];
  const rows = optima.map(({ n_experts, cost }) => [
    String(n_experts),
    duration(cost.training_hours),
    cost.training_dollars == null ? "–" : dollarsText(cost.training_dollars),
    cost.training_bytes == null ? "–" : memoryText(cost.training_bytes),
    cost.training_chips == null ? "–" : amount(cost.training_chips),
    amount(cost.serving_chips),
    amount(cost.tokens_per_second.alone),
    amount(cost.tokens_per_second.among_many),
  ]);
  fillTable("cost-table", head, rows, optima.indexOf(best));
  $("cost-head").textContent = chipsInWords(chips);
  $("cost-note").textContent = `${say("COST_NOTE")}.`;
}

// Draws the pictures. runs: those of the law, or null; change: sets fields when a picture is clicked.
export function showPictures({ options, plan }, runs, change) {
  const colours = coloursOf([...options.law.experts, ...options.experts]);
  const legend = options.experts.map((e) => element("li", {}, legendSample(colours[e]), `E = ${e}`));
  $("legend").replaceChildren(...legend);
  function takeMemory(bytes) {
    const perDevice = bytes / 1e9 / options.devices;
    change({ memory_gb: typed(Number(perDevice.toPrecision(3))) });
  }
  showPicture(pictures.sizes, (picture) => drawSizes(picture, options, plan, colours, runs));
  showPicture(pictures.memories, (picture) => drawMemories(picture, options, plan, colours, takeMemory));
}

// Draws a picture with its note; the note of a picture that cannot be drawn says why.
function showPicture(picture, drawIt) {
  picture.spec = null;
  picture.note.textContent = withErrors(() => drawIt(picture)) ?? "cannot be drawn for these limits";
  picture.canvas.hidden = picture.spec == null;
}
