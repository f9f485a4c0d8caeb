// The sentences of a plan: the command line's own templates (fit/messages/sentences.py) filled in.

import { INFERENCE_FLOPS, TRAINING_FLOPS, activeParameters, hasEnoughExperts, memoryOf } from "./counts.js";
import { smallestWidth, structure, topK, trainingBytesAt } from "./counts.js";
import { amount, format, general } from "./numbers.js";

let templates = {};
export function setTemplates(sentences) {
  templates = sentences;
}

export const say = (name, values = {}) => format(templates[name], values);

// What cannot be planned, in the command line's sentence.
export class PlanError extends Error {}
export function refuse(name, values) {
  throw new PlanError(say(name, values));
}

// What compute() returns; if it throws a PlanError, null, after onError was called with the error's sentence.
export function withErrors(compute, onError = () => {}) {
  try {
    return compute();
  } catch (error) {
    if (!(error instanceof PlanError)) throw error;
    onError(error.message);
    return null;
  }
}

// Why nothing is feasible at these numbers of experts: which limit cannot be met at the least of them, and by how much.
export function infeasibleWhy(shape, limits, experts) {
  const possible = experts.filter((e) => hasEnoughExperts(shape, e));
  if (!possible.length) return say("TOO_FEW_EXPERTS", { e: Math.max(...experts), used: topK(shape) });
  const e = Math.min(...possible);
  const d = smallestWidth(shape);
  const smallest = say(shape.n_dense ? "SMALLEST_OF" : "SMALLEST", { d, e, blocks: 1 + shape.n_dense });
  const { flops, memory_bytes, chips, inference_tokens, budget } = limits;
  const inGigabytes = (need, limit) => ({ smallest, need: need / 1e9, limit: limit / 1e9, times: need / limit });
  const served = memoryOf(shape, limits, d, e);
  if (memory_bytes != null && served > memory_bytes) return say("MEMORY_TOO_SMALL", inGigabytes(served, memory_bytes));
  if (chips) {
    const trained = trainingBytesAt(shape, chips, d, e);
    const limit = chips.count * chips.memory;
    if (trained > limit) return say("CHIPS_TOO_FEW", { ...chips, ...inGigabytes(trained, limit) });
  }
  const size = activeParameters(shape, d, e);
  const inference = INFERENCE_FLOPS * size * inference_tokens;
  const need = inference + TRAINING_FLOPS * size;
  const share = inference ? say("INFERENCE_SHARE", { inference }) : "";
  return say("FLOPS_TOO_FEW", { smallest, need, share, times: need / flops, limit: flops, budget });
}

// What extrapolation() gives: "n_tokens 7 times above 1.31M, ..."; "" for nothing.
export function outsideInWords(outside) {
  const sentences = outside.map(({ column, value, low, high, factor }) => {
    const isAbove = value > high;
    const nearest = isAbove ? high : low;
    const end = column === "training_flops" ? general(nearest, 3) : amount(nearest);
    const values = { column, factor: amount(factor), end };
    if (column === "unique_tokens") return say("TEXT_REPEATED", values);
    return say(isAbove ? "ABOVE" : "BELOW", values);
  });
  return sentences.join(", ");
}

const outsideRange = (outside) => (outside.length ? say("OUTSIDE", { what: outsideInWords(outside) }) : "");

// What to know before a plan is trusted. experts: those compared; wantsMore: whether the law would take ever more.
export function warningsOf(data, law, shape, plan, experts, wantsMore) {
  const { best, best_at_edge, best_undecided, bootstrap } = plan;
  const warnings = [];
  if (best.extrapolation.length) {
    warnings.push(say("BEST_OUTSIDE", { outside: outsideRange(best.extrapolation) }));
    if (law.warning) warnings.push(law.warning);
  }
  const ratio = best.n_tokens / best.n_active;
  if (ratio < 0.1 || ratio > 1e5) warnings.push(say("TOKENS_PER_PARAMETER", { what: "the model has", ratio }));
  if (best_at_edge) {
    const which = best.n_experts === Math.max(...experts) ? "largest" : "smallest";
    warnings.push(say("AT_EDGE", { e: best.n_experts, which }));
  }
  if (wantsMore) warnings.push(say("NOT_BOUNDED"));
  if (best_undecided) {
    const winners = bootstrap.optima.filter((row) => row.best_in_draws);
    winners.sort((a, b) => b.best_in_draws - a.best_in_draws);
    const wins = winners.map((row) => say("WIN", row)).join(", ");
    warnings.push(say("UNDECIDED", { draws: bootstrap.draws, wins }));
  }
  warnings.push(...unreadOptions(law, shape), ...wholeExperts(law, shape), ...law.notes);
  if (!Object.keys(law.ranges).length) warnings.push(say("NO_RANGE"));
  warnings.push(...unknownSizes(data, law, shape));
  return warnings;
}

// Says of a law that reads how experts are split that a plan's are whole.
function wholeExperts(law, shape) {
  const whole = ["top_k", "granularity", "shared_share"].filter((name) => law.columns.includes(name));
  if (!whole.length || law.own || Math.max(...law.experts) === 1) return [];
  const mixture = structure(shape, 2);
  const values = whole.map((name) => `${name} ${general(mixture[name])}`).join(", ");
  return [say("WHOLE_EXPERTS", { form: law.form, columns: whole.join(" and "), values })];
}

// Says which sizes are the paper's, as the law does not name its own.
function unknownSizes(data, law, shape) {
  const unknown = ["vocab_size", "width_per_block"].filter((name) => law.models[name] == null);
  const isPaper = Object.entries(data.paper_shape).every(([name, value]) => shape[name] === value);
  if (!unknown.length || !isPaper) return [];
  const values = unknown.map((name) => format("{size:,}", { size: shape[name] })).join(" and ");
  return [say("SHAPE_UNKNOWN", { names: unknown.join(" and "), values })];
}

const FLAGS = { used: "used", kv_share: "kv_share", n_dense: "dense_blocks" };

// In what the models differ from the law's own without a column that would tell the law.
function unreadOptions(law, shape) {
  const own = { used: 1, kv_share: 1, n_dense: 0, ...law.own };
  const unread = Object.keys(FLAGS).filter((name) => shape[name] !== own[name] && !(name === "used" && law.reads_used));
  if (!unread.length) return [];
  const asked = unread.map((name) => `--${FLAGS[name]}=${general(shape[name])}`).join(", ");
  const usual = unread.map((name) => `${FLAGS[name]} ${general(own[name])}`).join(", ");
  return [say("NOT_READ", { asked, form: law.form, own: usual, columns: law.columns.join(", ") })];
}

// One sentence: what to train, and how sure its loss is.
export function answerOf({ best, bootstrap }) {
  const isMixture = best.n_experts > 1;
  const row = bootstrap?.optima.find(({ n_experts }) => n_experts === best.n_experts);
  const [first, last] = bootstrap?.percentiles ?? [];
  return say("ANSWER", {
    ...best,
    model: say(isMixture ? "MIXTURE" : "DENSE", best),
    total: isMixture ? say("TOTAL", best) : "",
    interval: row ? say("INTERVAL", { first, last, draws: bootstrap.draws, loss: row.loss }) : "",
    built: "the second command below names the model of whole blocks to build",
  });
}

// What the plan decides, in sentences.
export function verdictInWords(data, { verdict, optima }) {
  const { choice, margin, cost } = verdict;
  const sentences = [];
  if (choice === "undecided") sentences.push(say("UNDECIDED_KIND", { cost }));
  else if (choice != null && margin != null) {
    const other = choice === "mixture" ? "dense model" : "mixture";
    sentences.push(say("DECIDED_KIND", { choice, margin, other }));
  }
  const tied = optima.filter(({ n_experts }) => verdict.tied.includes(n_experts));
  if (tied.length > 1) {
    const differences = Object.keys(verdict.differ).map((name) => data.verdict.columns[name]);
    const apart = differences.join(" and ") || "nothing that is counted here";
    sentences.push(say("TIED_MODELS", { models: tied.map((row) => say("TIED_MODEL", row)).join(", "), apart }));
  }
  return sentences;
}

// What the plan saves against the best dense model.
export function savingsInWords({ best, dense }) {
  if (!dense || best.n_experts === 1) return "";
  const flops = dense.flops_saved == null ? say("NEVER_DENSE") : say("FLOPS_SAVED", dense);
  const outside = dense.extrapolation.length ? `; ${outsideRange(dense.extrapolation)}` : "";
  return say("AGAINST_DENSE", { ...dense, flops }) + outside;
}

// On what chips a plan is costed.
export function chipsInWords(chips) {
  const dollars = chips.dollars_per_hour == null ? "" : say("DOLLARS_EACH", chips);
  return say("COST_HEAD", { ...chips, mfu: general(chips.mfu), dollars });
}
