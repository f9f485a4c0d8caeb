// Several laws asked about one budget, as fit/planning/compare.py: the best architecture of each, against its own best
// dense model, and what they agree on.

import { TRAINING_FLOPS, hasEnoughExperts, shapeOf, structure, tokensOf } from "./counts.js";
import { extrapolation, lawAt, lossOfColumns, ownCounts } from "./law.js";
import { infeasibleWhy, say } from "./messages.js";
import { referenceColumns } from "./reference_model.js";
import { leastFlops, solve } from "./solve.js";

// The splits of an expert that lie within the law's data; [1] where a split makes no difference to the law.
function splitsWithinData(data, law) {
  const read = ["top_k", "granularity"].filter((name) => law.columns.includes(name));
  if (!read.length) return [1];
  return data.compare.splits.filter((split) => read.every((name) => split <= (law.ranges[name]?.[1] ?? split)));
}

// The shapes of these sizes, {vocab_size, width_per_block}, that the law can tell apart, within its data.
function shapesToTry(data, law, sizes) {
  if (law.own) return [shapeOf({ ...law.own, final_norm: law.final_norm, ...sizes })];
  const readsShared = law.columns.includes("shared_share");
  const mostShared = readsShared ? (law.ranges.shared_share?.[1] ?? 1) : 0;
  return splitsWithinData(data, law).flatMap((split) => {
    const counts = Array.from({ length: split }, (_, shared) => shared);
    const allowed = counts.filter((shared) => shared <= mostShared * split);
    return allowed.map((shared) => shapeOf({ ...sizes, split, shared }));
  });
}

// {optimum, shape} of the law's least loss over the shapes and experts; optimum is null where nothing is feasible.
function bestOver(law, shapes, limits, experts) {
  let best = { optimum: null, shape: shapes[0] };
  for (const shape of shapes) {
    for (const e of experts.filter((e) => hasEnoughExperts(shape, e))) {
      const optimum = solve(lawAt(law, shape, e), e, shape, limits);
      const isBetter = optimum.feasible && !(best.optimum?.loss <= optimum.loss);
      if (isBetter) best = { optimum, shape };
    }
  }
  return best;
}

// The law's best dense model, and how it lies behind `loss`; null where there is none.
function denseAnswer(data, law, sizes, limits, loss) {
  if (!law.knows_dense) return null;
  const dense = law.dense ? data.laws.find(({ name }) => name === law.dense) : law;
  const { optimum, shape } = bestOver(dense, shapesToTry(data, dense, sizes), limits, [1]);
  if (!optimum) return null;
  const { n_active, n_tokens } = optimum;
  const answer = { n_experts: 1, n_active, n_tokens, loss: optimum.loss, law: dense.name };
  answer.loss_saved_share = 1 - loss / optimum.loss;
  if (limits.flops != null) {
    const needed = leastFlops(dense, 1, shape, limits, loss, limits.flops, 1e12 * limits.flops);
    answer.flops_ratio = needed && needed / limits.flops;
  }
  return answer;
}

// The reference model trained with the same budget, by the law, and the share of it with which the law's best model has
// the same loss (null: none). Null where the law says nothing of such a model.
function referenceAnswer(law, reference, { n_experts }, shape, limits) {
  const { n_active } = reference.counts;
  const n_tokens = tokensOf(limits, n_active);
  if (limits.flops == null || n_tokens < 1) return null;
  const columns = { ...referenceColumns(reference, law), n_tokens };
  const only = law.only_experts;
  if (only != null && Math.abs(columns.n_experts - only) > 1e-5 * only) return null;
  const loss = lossOfColumns(law, columns);
  const budgetAlone = { ...limits, memory_bytes: null, max_tokens: null, chips: null };
  const least = leastFlops(law, n_experts, shape, budgetAlone, loss, 1e-6 * limits.flops, limits.flops);
  return { n_tokens, loss, flops_share: least && least / limits.flops };
}

// The law's best architecture, its best dense one and the reference model beside them; {law, why} where nothing is
// feasible. experts: those allowed, null for the law's own.
export function lawAnswer(data, law, sizes, limits, experts, reference) {
  const isFree = law.knows_experts && !law.fixes_experts;
  const compared = experts && isFree ? experts : law.experts;
  const { optimum, shape } = bestOver(law, shapesToTry(data, law, sizes), limits, compared);
  const smallest = Math.min(...compared);
  if (!optimum) return { law: law.name, why: infeasibleWhy(shape, limits, [smallest]) };
  const { n_experts, n_active, n_total, n_tokens, loss, d_model, size_bound } = optimum;
  const isLargest = n_experts === Math.max(...compared);
  const isSmallest = n_experts === smallest && n_experts > 1;
  const training_flops = TRAINING_FLOPS * n_active * n_tokens;
  const columns = { ...structure(shape, n_experts), ...ownCounts(law, shape, optimum), n_tokens, training_flops };
  const answer = {
    ...{ law: law.name, n_experts, n_active, n_total, n_tokens, loss, d_model, size_bound },
    ...{ split: shape.split, shared: shape.shared, mixtures: law.of_mixtures, chose_experts: isFree },
    at_edge: law.knows_experts && compared.length > 1 && (isLargest || isSmallest),
    extrapolation: extrapolation(law, columns),
    dense: denseAnswer(data, law, sizes, limits, loss),
  };
  if (reference) answer.like = referenceAnswer(law, reference, optimum, shape, limits);
  return answer;
}

// The answers that count: those not too far beyond the compute of their law's runs.
function countedAnswers(data, answers) {
  const isBeyond = ({ column, value, high, factor }) =>
    column === "training_flops" && value > high && factor > data.compare.furthest;
  return answers.filter((answer) => !answer.extrapolation.some(isBeyond));
}

// How far the laws' answers lie apart, for each of several columns.
function agreement(data, answers) {
  const counted = countedAnswers(data, answers);
  const mixtures = counted.filter((answer) => answer.mixtures);
  const free = mixtures.filter((answer) => answer.chose_experts);
  const spans = ["n_active", "n_total", "n_tokens"].map((column) => spanOf(data, column, mixtures));
  return [...spans, spanOf(data, "n_experts", free)].filter((span) => span != null);
}

// The lowest and highest value of a column; limit: what holds all models there, so that they agree in nothing else.
function spanOf(data, column, models) {
  if (models.length < 2) return null;
  const sorted = [...models].sort((a, b) => a[column] - b[column]);
  const low = sorted[0];
  const high = sorted.at(-1);
  let limit = null;
  if (column === "n_total" && models.every(({ size_bound }) => size_bound === "memory")) limit = "memory";
  if (column === "n_experts" && models.every(({ at_edge }) => at_edge)) limit = "experts";
  return {
    ...{ column, low: low[column], high: high[column], limit },
    factor: high[column] / low[column],
    agree: high[column] <= data.compare.agree * low[column],
  };
}

// What the laws together say, in sentences.
export function conclusion(data, answers) {
  const counted = countedAnswers(data, answers);
  const furthest = data.compare.furthest.toLocaleString("en-US");
  const sentences = answers
    .filter((answer) => !counted.includes(answer))
    .map(({ law }) => say("NOT_COUNTED_LAW", { law, furthest }));
  const mixtures = counted.filter((answer) => answer.mixtures && answer.dense);
  if (mixtures.length) {
    const saved = mixtures.map(({ dense }) => dense.loss_saved_share);
    const for_mixtures = mixtures.filter(({ n_experts }) => n_experts > 1).length;
    const ends = { least: Math.min(...saved), most: Math.max(...saved) };
    sentences.push(say("LAWS_PREFER", { count: mixtures.length, for_mixtures, ...ends }));
  }
  const spans = agreement(data, answers).filter(({ limit }) => limit === null);
  const apart = spans.filter((span) => !span.agree).map((span) => say("LAWS_SPAN", span));
  const close = spans.filter((span) => span.agree).map((span) => say("LAWS_SPAN", span));
  if (apart.length) sentences.push(say("LAWS_DISAGREE", { what: apart.join("; ") }));
  if (close.length) sentences.push(say("LAWS_AGREE", { agree: data.compare.agree, what: close.join("; ") }));
  return sentences;
}
