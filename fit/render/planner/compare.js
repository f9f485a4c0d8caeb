// What several laws would build within the same limits: what `fit compare --json` prints, by the same names.

import { hasBudget, hasEnoughExperts, shapeOf } from "./counts.js";
import { structureColumns, tokensFor } from "./counts.js";
import { countsOfLaw, flopsOfLaw, lawAtExperts, lossOfColumns, outsideRanges, shapeOutside } from "./law.js";
import { infeasibleReason, say } from "./messages.js";
import { isAtEdge } from "./plan.js";
import { referenceColumns } from "./reference_model.js";
import { leastFlops, solve } from "./solve.js";

function mostInData(law, column, otherwise) {
  return law.ranges[column]?.[1] ?? otherwise;
}

// How finely the law's data split experts; [1] where a split makes no difference to the law.
function splitsWithinData(data, law) {
  const read = ["top_k", "granularity"].filter((name) => law.columns.includes(name));
  if (!read.length) return [1];
  return data.compare.splits.filter((split) => read.every((name) => split <= mostInData(law, name, split)));
}

// The shapes that the law can tell apart, within its data. sizes: {vocab_size, width_per_block}.
function shapesToTry(data, law, sizes) {
  if (law.own) return [shapeOf({ ...law.own, final_norm: law.final_norm, ...sizes })];
  const mostShared = law.columns.includes("shared_share") ? mostInData(law, "shared_share", 1) : 0;
  const shapes = [];
  for (const granularity of splitsWithinData(data, law)) {
    for (let shared = 0; shared < granularity && shared <= mostShared * granularity; shared++) {
      shapes.push(shapeOf({ ...sizes, granularity, shared }));
    }
  }
  return shapes;
}

/** What all laws are asked, of the options of the chosen one. @type {(options: Options) => Question} */
export function questionOf({ shape, reference, limits }) {
  const { vocab_size, width_per_block } = shape;
  return { sizes: { vocab_size, width_per_block }, reference, limits };
}

// {optimum, shape} of the law's least loss over shapes and experts; optimum is null where nothing is feasible. Yields
// after each shape.
function* bestOverShapes(data, law, { sizes, limits }, experts) {
  const shapes = shapesToTry(data, law, sizes);
  let best = { optimum: null, shape: shapes[0] };
  for (const shape of shapes) {
    for (const n_experts of experts) {
      if (!hasEnoughExperts(shape, n_experts)) continue;
      const optimum = solve(lawAtExperts(law, shape, n_experts), n_experts, shape, limits);
      const isBetter = optimum.feasible && !(best.optimum?.loss <= optimum.loss);
      if (isBetter) best = { optimum, shape };
    }
    yield;
  }
  return best;
}

// The law's best dense model, and how it lies behind `loss`; null where there is none.
function* denseAnswer(data, law, question, loss) {
  if (!law.knows_dense) return null;
  const dense = law.dense ? data.laws.find(({ name }) => name === law.dense) : law;
  const { optimum, shape } = yield* bestOverShapes(data, dense, question, [1]);
  if (!optimum) return null;
  const { n_active, n_tokens } = optimum;
  const loss_saved_share = 1 - loss / optimum.loss;
  const answer = { n_experts: 1, n_active, n_tokens, loss: optimum.loss, law: dense.name, loss_saved_share };
  const { limits } = question;
  if (hasBudget(limits)) {
    const needed = leastFlops(dense, 1, shape, limits, loss, limits.flops, 1e12 * limits.flops);
    answer.flops_ratio = needed == null ? null : needed / limits.flops;
  }
  return answer;
}

// The reference model trained with the same FLOPs, by the law, and the share of them with which the law's best model
// has the same loss (null: none has). Null where the law says nothing of such a model.
function referenceAnswer(law, reference, n_experts, shape, limits) {
  const { flops } = limits;
  if (flops == null) return null;
  const n_tokens = tokensFor(limits, reference.counts.n_active);
  if (n_tokens < 1) return null;
  const columns = { ...referenceColumns(reference, law), n_tokens };
  const only = law.only_experts;
  if (only != null && Math.abs(columns.n_experts - only) > 1e-5 * only) return null;
  const loss = lossOfColumns(law, columns);
  const budgetAlone = { ...limits, memory_bytes: null, max_tokens: null, serving: null };
  const least = leastFlops(law, n_experts, shape, budgetAlone, loss, 1e-6 * flops, flops);
  return { n_tokens, loss, flops_share: least == null ? null : least / flops };
}

/** The law's best architecture, its best dense one and the reference model beside them; {law, why} where nothing is
 *  feasible. experts: those allowed, null for the law's own. Yields now and then, and returns the answer.
 *  @type {(data: Data, law: Law, question: Question, experts: ?Experts[]) => Generator} */
export function* lawAnswer(data, law, question, experts) {
  const { reference, limits } = question;
  const chose_experts = law.knows_experts && !law.fixes_experts;
  const compared = experts && chose_experts ? experts : law.experts;
  const { optimum, shape } = yield* bestOverShapes(data, law, question, compared);
  if (!optimum) return { law: law.name, why: infeasibleReason(shape, limits, [Math.min(...compared)]) };
  const { feasible: _, ...row } = optimum;
  const { n_experts, n_tokens, loss } = row;
  const columns = { ...structureColumns(shape, n_experts), ...countsOfLaw(law, shape, optimum), n_tokens };
  columns.training_flops = flopsOfLaw(law, shape, optimum);
  const answer = {
    law: law.name,
    ...row,
    granularity: shape.granularity,
    shared: shape.shared,
    mixtures: law.of_mixtures,
    chose_experts,
    at_edge: isAtEdge(law, n_experts, compared),
    extrapolation: [...outsideRanges(law, columns), ...shapeOutside(law, shape, optimum.d_model)],
    dense: yield* denseAnswer(data, law, question, loss),
  };
  if (reference) answer.like = referenceAnswer(law, reference, n_experts, shape, limits);
  return answer;
}

// The answers that count: those not too far beyond the compute of their law's runs.
function countedAnswers(data, answers) {
  function isTooFar({ column, value, high, factor }) {
    return column === "training_flops" && value > high && factor > data.compare.furthest;
  }
  return answers.filter((answer) => !answer.extrapolation.some(isTooFar));
}

// How far the laws' answers lie apart, for each of several columns.
function agreementOf(data, counted) {
  const mixtures = counted.filter((answer) => answer.mixtures);
  const chose = mixtures.filter((answer) => answer.chose_experts);
  const spans = ["n_active", "n_total", "n_tokens"].map((column) => spanOf(data, column, mixtures));
  return [...spans, spanOf(data, "n_experts", chose)].filter((span) => span != null);
}

// The lowest and highest value of a column; limit: what holds all models there, so that they agree in nothing else.
function spanOf(data, column, answers) {
  if (answers.length < 2) return null;
  const values = answers.map((answer) => answer[column]);
  const low = Math.min(...values);
  const high = Math.max(...values);
  let limit = null;
  if (column === "n_total" && answers.every(({ size_bound }) => size_bound === "memory")) limit = "memory";
  if (column === "n_experts" && answers.every(({ at_edge }) => at_edge)) limit = "experts";
  return { column, low, high, limit, factor: high / low, agree: high <= data.compare.agree * low };
}

/** What the laws together say, in sentences. @type {(data: Data, answers: object[]) => string[]} */
export function conclusionOf(data, answers) {
  const counted = countedAnswers(data, answers);
  const furthest = data.compare.furthest.toLocaleString("en-US");
  const notCounted = answers.filter((answer) => !counted.includes(answer));
  const sentences = notCounted.map(({ law }) => say("law_not_counted", { law, furthest }));
  const mixtures = counted.filter((answer) => answer.mixtures && answer.dense);
  if (mixtures.length) {
    const saved = mixtures.map(({ dense }) => dense.loss_saved_share);
    const for_mixtures = mixtures.filter(({ n_experts }) => n_experts > 1).length;
    const ends = { least: Math.min(...saved), most: Math.max(...saved) };
    sentences.push(say("laws_prefer", { count: mixtures.length, for_mixtures, ...ends }));
  }
  const spans = agreementOf(data, counted).filter(({ limit }) => limit === null);
  const apart = spans.filter(({ agree }) => !agree).map((span) => say("LAWS_SPAN", span));
  const close = spans.filter(({ agree }) => agree).map((span) => say("LAWS_SPAN", span));
  if (apart.length) sentences.push(say("laws_disagree", { what: apart.join("; ") }));
  if (close.length) sentences.push(say("laws_agree", { agree: data.compare.agree, what: close.join("; ") }));
  return sentences;
}
