// A plan on the page: its sentences, tables, pictures and commands. answer: {data, state, options, plan}.

import { $, colourOf, element, makePicture } from "./chart.js";
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
  $("savings").textContent = savingsInWords(plan);
}

function dollarsText(dollars) {
  if (dollars == null) return "–";
  return dollars < 0.01 ? "< 1 cent" : `$${amount(dollars)}`;
}

// What the sentence does not say.
function showTiles({ best, chips }) {
  const tiles = [[memoryText(best.memory_bytes), "weights and cache"]];
  if (chips) {
    tiles.push([duration(best.cost.training_hours), `of training on ${amount(chips.count)} × ${chips.kind}`]);
    tiles.push([dollarsText(best.cost.training_dollars), "of training"]);
  }
  const made = tiles.map(([value, what]) => element("div", {}, element("dd", {}, value), element("dt", {}, what)));
  $("tiles").replaceChildren(...made);
}

const PROSE = 28; // characters of a cell that is read as a sentence

// Fills a table: head, and rows of cells as text, the first of each its heading. The last cell of a short row spans the
// rest. best: the row to mark.
export function fillTable(id, head, rows, best) {
  const lines = rows.map(([first, ...cells], i) => {
    const made = cells.map((cell) => element("td", cell.length > PROSE ? { class: "words" } : {}, cell));
    made.at(-1).setAttribute("colspan", head.length - cells.length);
    const mark = i === best ? { class: "best", "aria-label": "best" } : {};
    return element("tr", mark, element("th", { scope: "row" }, first), ...made);
  });
  const headings = head.map((word) => element("th", { scope: "col" }, word));
  $(id).replaceChildren(element("thead", {}, element("tr", {}, ...headings)), element("tbody", {}, ...lines));
}

// The best model of each number of experts.
function showTable({ optima, infeasible, best, bootstrap }) {
  const columns = {
    E: (row) => String(row.n_experts),
    active: (row) => amount(row.n_active),
    total: (row) => amount(row.n_total),
    tokens: (row) => amount(row.n_tokens),
    loss: (row) => row.loss.toFixed(4),
    memory: (row) => memoryText(row.memory_bytes),
    "bound by": (row) => row.size_bound || "–",
  };
  if (bootstrap) {
    const drawn = (row) => bootstrap.optima.find(({ n_experts }) => n_experts === row.n_experts);
    columns["loss, interval"] = (row) => drawn(row)?.loss.map((loss) => loss.toFixed(4)).join(" to ") ?? "–";
    columns["best in"] = (row) => `${drawn(row)?.best_in_draws ?? 0} of ${bootstrap.draws} draws`;
  }
  const outside = (row) => outsideInWords(row.extrapolation.filter(({ column }) => column !== "training_flops"));
  if (optima.some(outside)) columns["outside the fitted range"] = outside;
  const rows = optima.map((row) => Object.values(columns).map((write) => write(row)));
  for (const { n_experts, why } of infeasible) rows.push([String(n_experts), `not feasible: ${why}`]);
  fillTable("table", Object.keys(columns), rows, optima.indexOf(best));
}

// What training costs and keeps in memory, and how fast the model answers, by number of experts.
function showCosts({ chips, optima, best }) {
  $("costs").hidden = !chips;
  if (!chips) return;
  const columns = {
    E: ({ n_experts }) => String(n_experts),
    training: ({ cost }) => duration(cost.training_hours),
    price: ({ cost }) => dollarsText(cost.training_dollars),
    "training takes": ({ cost }) => (cost.training_bytes == null ? "–" : memoryText(cost.training_bytes)),
    chips: ({ cost }) => (cost.training_chips == null ? "–" : amount(cost.training_chips)),
    "served on": ({ cost }) => amount(cost.serving_chips),
    "tokens/s alone": ({ cost }) => amount(cost.tokens_per_second.alone),
    "tokens/s among many": ({ cost }) => amount(cost.tokens_per_second.among_many),
  };
  const rows = optima.map((row) => Object.values(columns).map((write) => write(row)));
  fillTable("cost-table", Object.keys(columns), rows, optima.indexOf(best));
  $("cost-head").textContent = chipsInWords(chips);
  $("cost-note").textContent = `${say("COST_NOTE")}.`;
}

// Draws the pictures. runs: those of the law, or null; change: sets fields when a picture is clicked.
export function showPictures({ options, plan }, runs, change) {
  const colours = coloursOf([...options.law.experts, ...options.experts]);
  const legend = options.experts.map((e) => element("li", { style: `border-color:${colourOf(colours[e])}` }, `E = ${e}`));
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
