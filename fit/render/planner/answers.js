// A plan on the page: its sentences, tables, pictures and commands.

import { colourOf, makePicture } from "./chart.js";
import { flopsPerHour } from "./cost.js";
import { planCommand } from "./command.js";
import { hasBudget } from "./counts.js";
import { byId, element, fillList, fillTable } from "./elements.js";
import { answerText, outsideText, say, oddsTexts, withErrors } from "./messages.js";
import { amount, durationText, memoryText, percentText } from "./numbers.js";
import { coloursOf, drawHours, drawMemories, drawSizes } from "./pictures.js";

const pictures = {
  sizes: makePicture("Loss against size"),
  memories: makePicture("Loss against memory"),
  hours: makePicture("Loss against hours"),
};
byId("pictures").append(...Object.values(pictures).map(({ figure }) => figure));

/** Shows the plan in sentences, tables and commands. @type {(answer: Answer) => void} */
export function showPlan(answer) {
  showSentences(answer);
  showTiles(answer);
  showTable(answer.plan);
  showCosts(answer);
  const command = planCommand(answer.state, answer.options);
  byId("command").textContent = command;
  byId("build-command").textContent = `${command} --emit_config=planned.py`;
  byId("json").textContent = JSON.stringify(answer.plan, null, 1);
}

function showSentences({ data, options, plan, behind_share }) {
  const { reference } = options;
  byId("answer").textContent = answerText(plan);
  fillList("verdict", [oddsTexts(data, options.law, plan.odds, behind_share).join("; ")]);
  byId("known-words").hidden = !reference;
  if (reference) {
    const counts = { ...reference.counts, cache: 2 * reference.counts.cache_elements_per_token };
    byId("known-words").textContent = `${counts.name}: ${[say("KNOWN", counts), ...counts.notes].join("; ")}.`;
  }
  fillList("warnings", plan.warnings);
}

function dollarsText(dollars) {
  if (dollars == null) return "–";
  return dollars < 0.01 ? "< 1 cent" : `$${amount(dollars)}`;
}

function showTiles({ options, plan: { best, chips } }) {
  const tiles = { "weights and cache": memoryText(best.memory_bytes) };
  if (chips) {
    const { training_hours, training_dollars } = best.cost;
    const mfu = best.speed ? best.speed.mfu[1] : chips.mfu;
    const how = best.speed ? ` (${options.limits.speeds.label})` : "";
    const on = `${amount(best.chips ?? chips.count)} × ${chips.kind} at ${percentText(mfu, 0)} MFU${how}`;
    tiles[`of training on ${on}`] = durationText(training_hours);
    tiles["of training"] = dollarsText(training_dollars);
  }
  const made = Object.entries(tiles).map(([what, value]) => {
    return element("div", {}, element("dd", {}, value), element("dt", {}, what));
  });
  byId("tiles").replaceChildren(...made);
}

function showTable({ optima, infeasible, best, odds }) {
  const columns = {
    E: (row) => String(row.n_experts),
    active: (row) => amount(row.n_active),
    total: (row) => amount(row.n_total),
    tokens: (row) => amount(row.n_tokens),
    loss: (row) => row.loss.toFixed(4),
    memory: (row) => memoryText(row.memory_bytes),
    "bound by": (row) => row.size_bound || "–",
  };
  if (odds?.drawn.length) {
    const drawn = (row) => odds.experts.find(({ n_experts }) => n_experts === row.n_experts);
    columns["loss, interval"] = (row) => drawn(row).loss.map((loss) => loss.toFixed(4)).join(" to ");
    columns["best in"] = (row) => `${drawn(row).best_in_draws} of ${odds.draws} draws`;
  }
  function outside({ extrapolation }) {
    return outsideText(extrapolation.filter(({ column }) => column !== "training_flops"));
  }
  if (optima.some(outside)) columns["outside the fitted range"] = outside;
  fillTable("table", columns, [...optima, ...infeasible], best);
}

// What training costs and keeps in memory, and how fast the model answers, by number of experts.
function showCosts({ data, plan: { chips, optima, best } }) {
  byId("costs").hidden = !chips;
  if (!chips) return;
  const columns = {
    E: ({ n_experts }) => String(n_experts),
    training: ({ cost }) => durationText(cost.training_hours),
    price: ({ cost }) => dollarsText(cost.training_dollars),
    "served on": ({ cost }) => amount(cost.serving_chips),
  };
  best.cost.serving.decoding.forEach(({ batch }, i) => {
    const decoded = ({ cost }) => amount(cost.serving.decoding[i].decode_tokens_per_second);
    columns[`decodes tokens/s, batch ${batch}`] = decoded;
  });
  columns["prefill tokens/s"] = ({ cost }) => amount(cost.serving.prefill_tokens_per_second);
  fillTable("cost-table", columns, optima, best);
  const { bandwidth_share } = data.serving;
  const { products_share } = data.chips[chips.kind];
  const { label } = best.cost.serving;
  const notes = [say("COST_NOTE", { label }), say("SERVING_NOTE", { bandwidth_share, products_share })];
  byId("cost-note").textContent = `${notes.join("; ")} (${label}).`;
}

/** Draws the pictures; yields after each. runs: columns of the law's runs.
 *  @type {(answer: Answer, runs: ?object) => Generator} */
export function* showPictures({ data, options, plan }, runs) {
  const colours = coloursOf([...options.law.experts, ...options.experts]);
  const legend = options.experts.map((n_experts) => {
    return element("li", { style: `border-color:${colourOf(colours[n_experts])}` }, `E = ${n_experts}`);
  });
  byId("legend").replaceChildren(...legend);
  showPicture(pictures.sizes, (picture) => drawSizes(picture, options, plan, colours, runs));
  yield;
  showPicture(pictures.memories, (picture) => drawMemories(picture, options, plan, colours));
  yield;
  const { chips, limits } = options;
  pictures.hours.figure.hidden = !chips || !hasBudget(limits);
  if (pictures.hours.figure.hidden) return;
  const hours = limits.speeds ? options.hours : limits.flops / flopsPerHour(data, chips);
  showPicture(pictures.hours, (picture) => drawHours(picture, options, plan, colours, hours));
}

// Draws a picture with its note; the note of a picture that cannot be drawn says why.
function showPicture(picture, drawIt) {
  picture.drawing.replaceChildren();
  picture.note.textContent = withErrors(() => drawIt(picture)) ?? "cannot be drawn for these limits";
  picture.drawing.toggleAttribute("hidden", !picture.drawing.hasChildNodes());
}
