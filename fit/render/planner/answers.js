// The answer of a plan as lines of a label, a value and a detail, as fit/planning/answer/plan_answer.py has them.

import { data } from "./data.js";
import { say } from "./messages.js";
import { amount, dollarsText, durationText, flopsText, memoryText } from "./numbers.js";
import { shareBeyond } from "./odds.js";

/** The lines on what to train, what it costs, and how sure that is.
 *  @type {(options: Options, plan: Plan) => Generator<Line>} */
export function* planLines(options, plan) {
  const { reference, chips, limits, law } = options;
  yield { value: whatToTrain(plan) };
  if (reference) yield { label: reference.counts.name, value: knownText(reference.counts) };
  yield { label: "Price", value: priceText(options, plan) };
  if (limits.serving) yield { label: "Serve", value: serveText(options, plan) };
  yield { label: "How sure", value: [...oddsClauses(law, plan.odds)].join("; ") };
  yield beyondLine(law, plan);
  for (const { text } of plan.findings) yield { label: "warning", value: text };
  if (chips && !limits.speeds) {
    const training = `whether the memory of ${amount(chips.count)} x ${chips.kind} holds the training`;
    yield { label: "Not computed here", value: `${training}; the first command below answers that` };
  }
}

function whatToTrain({ best, odds }) {
  const isMixture = best.n_experts > 1;
  let interval = "";
  if (odds?.drawn.length) {
    const { loss } = odds.experts.find(({ n_experts }) => n_experts === best.n_experts);
    const [first, last] = odds.percentiles;
    interval = say("INTERVAL", { first, last, draws: odds.draws, loss });
  }
  return say("ANSWER", {
    ...best,
    model: say(isMixture ? "MIXTURE" : "DENSE", best),
    total: isMixture ? say("TOTAL", best) : "",
    interval,
    counted: "",
    built: best.speed ? "" : "; the last command below names the model of whole blocks to build",
  });
}

function knownText(counts) {
  const known = say("KNOWN", { ...counts, cache: 2 * counts.cache_elements_per_token });
  return [known, ...counts.notes].join("; ");
}

function priceText({ chips, limits }, { best }) {
  const served = say("SHORT_SERVED", best);
  if (!chips) return `${flopsText(best.training_flops)} training FLOPs; ${served}`;
  const { cost, speed } = best;
  const values = {
    ...cost,
    dollars: cost.training_dollars == null ? "" : say("SHORT_DOLLARS", cost),
    chips: best.chips ? say("CHIPS_IN_USE", { ...chips, used: best.chips }) : `${chips.count} x ${chips.kind}`,
  };
  if (!speed) return `${say("SHORT_PRICE", { ...values, mfu: chips.mfu, assumed: "" })}; ${served}`;
  const [low, , high] = speed.hours;
  const { label } = limits.speeds;
  return `${say("SHORT_PRICE_TIME", { ...values, ends: [low, high], mfu: speed.mfu[1], label })}; ${served}`;
}

function serveText({ chips, limits }, { best }) {
  const { serving } = best.cost;
  const { tokens_per_second, batch } = limits.serving;
  const decoding = serving.decoding.find((row) => row.batch === batch);
  const prefill = serving.prefill_tokens_per_second;
  return say("SHORT_SERVE", { ...serving, ...decoding, wanted: tokens_per_second, kind: chips.kind, prefill });
}

// How sure the number of experts is, as fit/planning/answer/odds_line.py has it.
function* oddsClauses(law, odds) {
  if (!odds) return yield say("PAGE_MEDIANS");
  if (odds.second == null) return yield say("ODDS_ONE_NUMBER");
  if (odds.drawn.length) yield* countClauses(odds);
  else yield say("ODDS_MEDIAN_ALONE", { why: law.no_draws || say("ODDS_NO_DRAWS") });
  yield costOfSecond(odds);
  if (odds.by_median !== odds.recommended) yield say("ODDS_BY_MEDIAN", { best: named(odds.by_median) });
  const source = odds.drawn.length && law.bootstrap.source;
  if (source) yield say("ODDS_SOURCE", { source });
}

// In how many draws a mixture, and each number of experts, is the best.
function* countClauses(odds) {
  const { draws, mixture_in_draws: mixtures } = odds;
  let ofAll = say("ODDS_OF_DRAWS", { draws });
  if (odds.experts.some(({ n_experts }) => n_experts === 1)) {
    const mostly = odds.recommended !== 1 && 2 * mixtures >= draws;
    yield say(mostly ? "ODDS_MIXTURE" : "ODDS_DENSE", { count: mostly ? mixtures : draws - mixtures, draws });
    ofAll = "";
  }
  const winners = odds.experts.filter(({ n_experts, best_in_draws }) => n_experts > 1 && best_in_draws);
  winners.sort((a, b) => b.best_in_draws - a.best_in_draws);
  const counts = winners.map((row, i) => say(i ? "WIN" : "ODDS_FIRST", row) + (i ? "" : ofAll));
  if (counts.length) yield counts.join(", ");
}

// The mean cost of the second number of experts beyond the first.
function costOfSecond({ experts, recommended, second, close_call, differ }) {
  const [first, other] = [recommended, second].map((e) => experts.find(({ n_experts }) => n_experts === e));
  const budget = say("ODDS_SHARE", { share: shareBeyond(first, other) });
  const costs = say("ODDS_COSTS", { second: named(second), loss: other.expected_loss - first.expected_loss, budget });
  if (!close_call.length) return costs;
  const names = Object.keys(differ).map((name) => data.odds.columns[name]);
  const apart = [names.slice(0, -1).join(", "), names.at(-1)].filter(Boolean).join(" and ");
  return say("ODDS_CLOSE", { costs, apart: apart && say("ODDS_DIFFER", { apart }) });
}

function named(n_experts) {
  return n_experts === 1 ? say("DENSE") : String(n_experts);
}

// The line on what the plan extrapolates.
function beyondLine(law, { best, best_at_edge, optima, infeasible }) {
  const factors = factorsText(best);
  const isKnown = Object.keys(law.ranges).length > 0;
  const words = [factors || say(isKnown ? "SHORT_INSIDE" : "SHORT_NO_RANGE")];
  if (best_at_edge) {
    const most = Math.max(...[...optima, ...infeasible].map(({ n_experts }) => n_experts));
    words.push(say("SHORT_EDGE", { ...best, which: best.n_experts === most ? "most" : "fewest" }));
  }
  return { label: factors ? "Extrapolates from the law's runs" : "Extrapolates", value: words.join("; ") };
}

// "n_tokens 7.33 times above, ..."; "" for nothing.
function factorsText({ extrapolation }) {
  const factors = extrapolation.map((outside) => {
    return say(outside.factor === null ? "SHORT_SIDE" : "SHORT_FACTOR", { ...outside, side: outside.value > outside.high ? "above" : "below" });
  });
  return factors.join(", ");
}

/** The table of the best models by number of experts. @type {(plan: Plan) => Line} */
export function sizesLine({ optima, infeasible, best, odds }) {
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
  if (optima.some(factorsText)) columns["outside the fitted range"] = factorsText;
  return { detail: { columns, rows: [...optima, ...infeasible], best } };
}

/** The table of costs and speeds by number of experts; none without chips.
 *  @type {(plan: Plan) => Line[]} */
export function costLines({ chips, optima, best }) {
  if (!chips) return [];
  const columns = {
    E: ({ n_experts }) => String(n_experts),
    training: ({ cost }) => durationText(cost.training_hours),
    price: ({ cost }) => (cost.training_dollars == null ? "–" : dollarsText(cost.training_dollars)),
    "served on": ({ cost }) => amount(cost.serving_chips),
  };
  const { decoding, label } = best.cost.serving;
  decoding.forEach(({ batch }, i) => {
    const decoded = ({ cost }) => amount(cost.serving.decoding[i].decode_tokens_per_second);
    columns[`decodes tokens/s, batch ${batch}`] = decoded;
  });
  columns["prefill tokens/s"] = ({ cost }) => amount(cost.serving.prefill_tokens_per_second);
  const { bandwidth_share } = data.serving;
  const { products_share } = data.chips[chips.kind];
  const note = say("SERVING_NOTE", { bandwidth_share, products_share });
  return [{ detail: { columns, rows: optima, best } }, { value: `${note} (${label}).` }];
}
