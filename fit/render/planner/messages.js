// The sentences of a plan: the command line's own templates (fit/messages/sentences.py) filled in.

import { INFERENCE_FLOPS, PAPER_SHAPE, TRAINING_FLOPS, activeParameters, embeddingAndHead } from "./counts.js";
import { hasEnoughExperts, smallestWidth, structureColumns, topK } from "./counts.js";
import { amount, fillTemplate, general } from "./numbers.js";
import { sizeLimits } from "./serving.js";

/** The command line's templates by name; app.js fills them in. @type {Object<string, string>} */
export const templates = {};

/** A sentence of the command line. @type {(name: string, values?: object) => string} */
export function say(name, values = {}) {
  return fillTemplate(templates[name], values);
}

/** What cannot be planned, in the command line's sentence. */
export class PlanError extends Error {}

/** Throws a sentence of the command line. @type {(name: string, values?: object) => never} */
export function refuse(name, values) {
  throw new PlanError(say(name, values));
}

/** What compute() returns; where it throws a PlanError, null, after onError was called with its sentence.
 *  @type {<T>(compute: () => T, onError?: (sentence: string) => void) => ?T} */
export function withErrors(compute, onError = () => {}) {
  try {
    return compute();
  } catch (error) {
    if (!(error instanceof PlanError)) throw error;
    onError(error.message);
    return null;
  }
}

/** Why nothing is feasible at these numbers of experts: which limit the smallest model exceeds, and how far.
 *  @type {(shape: Shape, limits: Limits, experts: Experts[]) => string} */
export function infeasibleReason(shape, limits, experts) {
  const possible = experts.filter((n_experts) => hasEnoughExperts(shape, n_experts));
  if (!possible.length) return say("TOO_FEW_EXPERTS", { e: Math.max(...experts), used: topK(shape) });
  const e = Math.min(...possible);
  const d = smallestWidth(shape);
  const smallest = say(shape.n_dense ? "SMALLEST_OF" : "SMALLEST", { d, e, blocks: 1 + shape.n_dense });
  for (const { sentence, most, needed, values } of sizeLimits(shape, limits, e)) {
    const need = needed(d);
    const gigabytes = { need: need / 1e9, limit: most / 1e9, times: need / most };
    if (need > most) return say(sentence, { smallest, ...gigabytes, ...values(need) });
  }
  const { flops, inference_tokens, budget, speeds } = limits;
  if (speeds) return say("PAGE_WITHOUT_SPEEDS", { missing: "within these limits", command: speeds.asked.command });
  const n_active = activeParameters(shape, d, e);
  const inference = INFERENCE_FLOPS * n_active * inference_tokens;
  const need = inference + TRAINING_FLOPS * n_active;
  const share = inference ? say("INFERENCE_SHARE", { inference }) : "";
  return say("FLOPS_TOO_FEW", { smallest, need, share, times: need / flops, limit: flops, budget });
}

/** "n_tokens 7 times above 1.31M, ..."; "" for nothing. @type {(outside: Outside[]) => string} */
export function outsideText(outside) {
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

/** What to know before a plan is trusted. wantsMore: whether the law would take ever more experts.
 *  @type {(data: Data, law: Law, shape: Shape, plan: Plan, experts: Experts[], wantsMore: boolean) => string[]} */
export function warningsOf(data, law, shape, plan, experts, wantsMore) {
  const { best, best_at_edge, odds } = plan;
  const warnings = [];
  if (best.extrapolation.length) {
    const outside = say("OUTSIDE", { what: outsideText(best.extrapolation) });
    warnings.push(say("best_outside", { outside }));
    if (law.warning) warnings.push(law.warning);
  }
  const ratio = best.n_tokens / best.n_active;
  if (ratio < 0.1 || ratio > 1e5) warnings.push(say("tokens_per_parameter", { what: "the model has", ratio }));
  const share = (embeddingAndHead(shape) * best.d_model) / best.n_active;
  if (share > data.doubt.mostly) warnings.push(say("mostly_embedding", { share, vocab_size: shape.vocab_size }));
  if (best_at_edge) {
    const which = best.n_experts === Math.max(...experts) ? "largest" : "smallest";
    warnings.push(say("at_edge", { n_experts: best.n_experts, which }));
  }
  if (odds?.settled === false && !odds.close_call.length) {
    const wins = winnersOf(odds).map((row) => say("WIN", row)).join(", ");
    warnings.push(say("undecided", { draws: odds.draws, wins }));
  }
  if (wantsMore) warnings.push(say("not_bounded"));
  warnings.push(...unreadOptions(law, shape), ...wholeExperts(law, shape), ...law.notes);
  if (!Object.keys(law.ranges).length) warnings.push(say("no_range"));
  return [...warnings, ...unknownSizes(law, shape)];
}

// The rows that are the best in some draw, those first that are it in most.
function winnersOf({ experts }) {
  return experts.filter((row) => row.best_in_draws).sort((a, b) => b.best_in_draws - a.best_in_draws);
}

// Says of a law that reads how experts are split that a plan's are whole.
function wholeExperts(law, shape) {
  const read = ["top_k", "granularity", "shared_share"].filter((name) => law.columns.includes(name));
  if (!read.length || law.own || Math.max(...law.experts) === 1) return [];
  const mixture = structureColumns(shape, 2);
  const values = read.map((name) => `${name} ${general(mixture[name])}`).join(", ");
  return [say("whole_experts", { form: law.form, columns: read.join(" and "), values })];
}

// Says which sizes are the paper's, as the law does not name its own.
function unknownSizes(law, shape) {
  const unknown = ["vocab_size", "width_per_block"].filter((name) => law.models[name] == null);
  const isPaper = Object.keys(PAPER_SHAPE).every((name) => shape[name] === PAPER_SHAPE[name]);
  if (!unknown.length || !isPaper) return [];
  const values = unknown.map((name) => fillTemplate("{size:,}", { size: shape[name] })).join(" and ");
  return [say("shape_unknown", { names: unknown.join(" and "), values })];
}

const FLAGS = { active_width: "used", kv_share: "kv_share", n_dense: "dense_blocks" };

// Says in what the models differ from the law's own without a column that would tell the law.
function unreadOptions(law, shape) {
  const own = { ...PAPER_SHAPE, ...law.own };
  const differing = Object.keys(FLAGS).filter((name) => shape[name] !== own[name]);
  const unread = differing.filter((name) => name !== "active_width" || !law.reads_used);
  if (!unread.length) return [];
  const asked = unread.map((name) => `--shape=${FLAGS[name]}:${general(shape[name])}`).join(", ");
  const usual = unread.map((name) => `${FLAGS[name]} ${general(own[name])}`).join(", ");
  return [say("not_read", { asked, form: law.form, own: usual, columns: law.columns.join(", ") })];
}

/** One sentence: what to train, and how sure its loss is. @type {(plan: Plan) => string} */
export function answerText({ best, odds }) {
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
    built: best.speed ? "" : "; the second command below names the model of whole blocks to build",
  });
}

/** How sure the number of experts is, in clauses.
 *  @type {(data: Data, law: Law, odds: Odds, behind_share: number) => string[]} */
export function oddsTexts(data, law, odds, behind_share) {
  if (!odds) return [say("PAGE_MEDIANS")];
  if (odds.second == null) return [say("ODDS_ONE_NUMBER")];
  const clauses = odds.drawn.length ? countTexts(odds) : [say("ODDS_MEDIAN_ALONE", { why: law.no_draws || say("ODDS_NO_DRAWS") })];
  const row = (wanted) => odds.experts.find(({ n_experts }) => n_experts === wanted);
  const loss = row(odds.second).expected_loss - row(odds.recommended).expected_loss;
  const named = (n_experts) => (n_experts === 1 ? say("DENSE") : String(n_experts));
  const budget = say("ODDS_SHARE", { share: behind_share });
  const costs = say("ODDS_COSTS", { second: named(odds.second), loss, budget });
  const names = Object.keys(odds.differ).map((name) => data.odds.columns[name]);
  const apart = [names.slice(0, -1).join(", "), names.at(-1)].filter(Boolean).join(" and ");
  const differ = apart && say("ODDS_DIFFER", { apart });
  clauses.push(odds.close_call.length ? say("ODDS_CLOSE", { costs, apart: differ }) : costs);
  if (odds.by_median !== odds.recommended) clauses.push(say("ODDS_BY_MEDIAN", { best: named(odds.by_median) }));
  const source = odds.drawn.length && law.bootstrap.source;
  if (source) clauses.push(say("ODDS_SOURCE", { source }));
  return clauses;
}

// In how many draws a mixture, and each number of experts, is the best.
function countTexts(odds) {
  const { draws, mixture_in_draws: mixtures } = odds;
  const clauses = [];
  let ofAll = say("ODDS_OF_DRAWS", { draws });
  if (odds.experts.some(({ n_experts }) => n_experts === 1)) {
    const mostly = 2 * mixtures >= draws;
    clauses.push(say(mostly ? "ODDS_MIXTURE" : "ODDS_DENSE", { count: mostly ? mixtures : draws - mixtures, draws }));
    ofAll = "";
  }
  const winners = winnersOf(odds).filter(({ n_experts }) => n_experts > 1);
  const counts = winners.map((row, i) => say(i ? "WIN" : "ODDS_FIRST", row) + (i ? "" : ofAll));
  if (counts.length) clauses.push(counts.join(", "));
  return clauses;
}
