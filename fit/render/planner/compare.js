// The answers of several laws within the same limits: fields of `fit compare --json`.

import { INFERENCE_FLOPS, TRAINING_FLOPS, hasBudget, hasEnoughExperts, shapeOf, tokensFor } from "./counts.js";
import { data } from "./data.js";
import { lawAtExperts, outsideRangesOf } from "./law.js";
import { PlanError, finding, infeasibleReason, refuse, say } from "./messages.js";
import { oddsOf } from "./odds.js";
import { referenceShape } from "./options.js";
import { isAtEdge } from "./plan.js";
import { feasibleOf, leastFlops, solve } from "./solve.js";

// {optimum, shape}: the law's shape of the least loss over experts, and of its models the one with the least expected
// loss, as in a plan. Shapes are each in the sizes that are asked for: that of the model to start from, else those that
// the law tells apart within its data. optimum is null where nothing is feasible.
function bestOverShapes(law, options, experts) {
  const { limits, reference } = options;
  const { vocab_size, width_per_block } = options.shape;
  const bases = reference ? [referenceShape(reference, law)] : law.shapes.map((narrow) => ({ ...law.own, ...narrow }));
  const shapes = bases.map((base) => shapeOf({ ...base, vocab_size, width_per_block }));
  let best = { shape: shapes[0], optima: [], least: Infinity };
  for (const shape of shapes) {
    const possible = experts.filter((n_experts) => hasEnoughExperts(shape, n_experts));
    const solved = possible.map((n_experts) => solve(lawAtExperts(law, shape, n_experts), n_experts, shape, limits));
    const optima = feasibleOf(solved);
    const least = Math.min(...optima.map(({ loss }) => loss));
    if (least < best.least) best = { shape, optima, least };
  }
  const { shape, optima } = best;
  if (!optima.length) return { optimum: null, shape };
  const { recommended } = oddsOf({ law, shape, limits }, optima);
  return { optimum: optima.find(({ n_experts }) => n_experts === recommended), shape };
}

// The law's best dense model, and how it lies behind `loss`; null where there is none.
function denseAnswer(law, options, loss) {
  if (!law.holds_for_dense) return null;
  const dense = law.dense ? data.laws.find(({ name }) => name === law.dense) : law;
  const { optimum, shape } = bestOverShapes(dense, options, [1]);
  if (!optimum) return null;
  const { n_active, n_tokens } = optimum;
  const loss_saved_share = 1 - loss / optimum.loss;
  const answer = { n_experts: 1, n_active, n_tokens, loss: optimum.loss, law: dense.name, loss_saved_share };
  const { limits } = options;
  if (hasBudget(limits)) {
    const needed = leastFlops(dense, 1, shape, limits, loss, limits.flops, 1e12 * limits.flops);
    answer.flops_ratio = needed == null ? null : needed / limits.flops;
  }
  return answer;
}

// The reference model trained with the same FLOPs, by the law, and the share of those it takes with which the law's best
// model has the same loss on no more text (null: none has). Null where the law says nothing of such a model.
function referenceAnswer(law, reference, n_experts, shape, limits) {
  const { flops } = limits;
  if (flops == null) return null;
  const { counts } = reference;
  const n_tokens = tokensFor(limits, counts.n_active);
  if (n_tokens < 1) return null;
  const its = shapeOf(referenceShape(reference, law));
  const itsExperts = its.counts_routed_experts ? counts.n_experts : counts.whole_experts;
  const only = law.only_n_experts;
  if (only != null && Math.abs(itsExperts - only) > 1e-5 * only) return null;
  const d_model = counts.n_embedding / its.vocab_size;
  const loss = lawAtExperts(law, its, itsExperts).loss({ ...counts, d_model }, n_tokens);
  const withoutMemory = { ...limits, memory_bytes: null, serving: null };
  const least = leastFlops(law, n_experts, shape, withoutMemory, loss, 1e-6 * flops, flops);
  const itsFlops = counts.n_active * (TRAINING_FLOPS * n_tokens + INFERENCE_FLOPS * limits.inference_tokens);
  return { n_tokens, loss, flops_share: least == null ? null : least / itsFlops };
}

/** The law's best architecture, its best dense one and the reference model beside them. Throws PlanError where nothing
 *  is feasible. options: of the chosen law. experts: those allowed, null for the law's own.
 *  @type {(law: Law, options: Options, experts: ?Experts[]) => object} */
export function lawAnswer(law, options, experts) {
  const { reference, limits } = options;
  const chose_experts = law.chooses_experts;
  const hasOneNumber = law.holds_for_mixtures && (law.has_fixed_n_experts || law.only_n_experts != null);
  if (experts && hasOneNumber && !experts.includes(law.experts[0])) {
    refuse("ONE_NUMBER", { law: law.name, own: law.experts[0] });
  }
  const compared = experts && chose_experts ? experts : law.experts;
  const { optimum, shape } = bestOverShapes(law, options, compared);
  if (!optimum) throw new PlanError(infeasibleReason(shape, limits, [Math.min(...compared)]));
  const { feasible: _, ...row } = optimum;
  const { n_experts, loss } = row;
  const answer = {
    law: law.name,
    ...row,
    granularity: shape.granularity,
    shared: shape.shared,
    mixtures: law.holds_for_mixtures,
    chose_experts,
    at_edge: isAtEdge(law, n_experts, compared),
    extrapolation: outsideRangesOf(law, shape, optimum),
    dense: denseAnswer(law, options, loss),
  };
  if (reference) answer.like = referenceAnswer(law, reference, n_experts, shape, limits);
  return answer;
}

// The answers that count: those not too far beyond the compute of their law's runs.
function countedAnswers(answers) {
  function isTooFar({ column, value, high }) {
    return column === "training_flops" && value > data.compare.furthest * high;
  }
  return answers.filter((answer) => !answer.extrapolation.some(isTooFar));
}

// How far the laws' answers lie apart in a column; none for fewer than two answers, or if a limit holds all of them.
function spansOf(column, answers, isHeld = () => false) {
  if (answers.length < 2 || answers.every(isHeld)) return [];
  const values = answers.map((answer) => answer[column]);
  const low = Math.min(...values);
  const high = Math.max(...values);
  return [{ column, low, high, factor: high / low }];
}

/** Findings on the laws together. @type {(answers: object[]) => Generator<Finding>} */
export function* findingsOfLaws(answers) {
  const counted = countedAnswers(answers);
  const furthest = data.compare.furthest.toLocaleString("en-US");
  for (const answer of answers) {
    if (!counted.includes(answer)) yield finding("law_not_counted", { law: answer.law, furthest });
  }
  const mixtures = counted.filter((answer) => answer.mixtures && answer.dense);
  if (mixtures.length) {
    const saved = mixtures.map(({ dense }) => dense.loss_saved_share);
    const for_mixtures = mixtures.filter(({ n_experts }) => n_experts > 1).length;
    const ends = { least: Math.min(...saved), most: Math.max(...saved) };
    yield finding("laws_prefer", { count: mixtures.length, for_mixtures, ...ends });
  }
  const sized = counted.filter((answer) => answer.mixtures);
  const chose = sized.filter(({ chose_experts }) => chose_experts);
  const spans = [
    ...spansOf("n_active", sized),
    ...spansOf("n_total", sized, ({ size_bound }) => size_bound === "memory"),
    ...spansOf("n_tokens", sized),
    ...spansOf("n_experts", chose, ({ at_edge }) => at_edge),
  ];
  const inWords = (these) => these.map((span) => say("LAWS_SPAN", span)).join("; ");
  const apart = inWords(spans.filter(({ factor }) => factor > data.compare.agree));
  const near = inWords(spans.filter(({ factor }) => factor <= data.compare.agree));
  if (apart) yield finding("laws_disagree", { what: apart });
  if (near) yield finding("laws_agree", { agree: data.compare.agree, what: near });
}
