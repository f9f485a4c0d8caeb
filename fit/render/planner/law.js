// The laws: loss in nats per token. FORMULAS are the laws' own, in JavaScript (formulas.py).

import { embeddingAndHead, structureColumns, trainingFlops } from "./counts.js";

// The coefficients by name, with the entries that formulas read beside them: "ln a", "ln(E_max / E_start - 1)".
function formulaEntries(law, coefficients) {
  const entries = { ...coefficients };
  for (const [name, isPositive, above] of law.entries) {
    if (isPositive) entries[`ln ${name}`] = Math.log(coefficients[name]);
    if (above) entries[`ln(${name} / ${above} - 1)`] = Math.log(coefficients[name] / coefficients[above] - 1);
  }
  return entries;
}

// The columns with their logarithms, as formulas read them.
function withLogs(columns) {
  const values = {};
  for (const [name, value] of Object.entries(columns)) {
    values[name] = value;
    values[`ln ${name}`] = Math.log(value);
  }
  return values;
}

/** The law at a number of experts, for models of a shape. coefficients: of a bootstrap draw, else the law's own.
 *  @type {(law: Law, shape: Shape, n_experts: Experts, coefficients?: object) => LawAtExperts} */
export function lawAtExperts(law, shape, n_experts, coefficients = law.coefficients) {
  const { log_loss, chinchilla_coefficients_at } = FORMULAS[law.form];
  const entries = formulaEntries(law, coefficients);
  const values = withLogs(structureColumns(shape, n_experts)); // once: a search asks for thousands of losses
  const rows = uncountedRows(law, shape);
  function lossOfCounts({ n_active, n_total, n_tokens }) {
    values.n_active = n_active;
    values.n_total = n_total;
    values.n_tokens = n_tokens;
    values["ln n_active"] = Math.log(n_active);
    values["ln n_total"] = Math.log(n_total);
    values["ln n_tokens"] = Math.log(n_tokens);
    return Math.exp(log_loss(entries, values));
  }
  function loss({ n_active, n_total, d_model }, n_tokens) {
    const uncounted = rows * d_model;
    return lossOfCounts({ n_active: n_active - uncounted, n_total: n_total - uncounted, n_tokens });
  }
  if (!law.closed || !law.counts_embedding) return { loss, lossOfCounts, exponents: [] };
  const [, mu, , nu] = chinchilla_coefficients_at(coefficients, n_experts);
  return { loss, lossOfCounts, exponents: [mu, nu] };
}

// Weights of embedding and head per unit of width that the law does not count: all, or those beyond its own vocabulary.
function uncountedRows(law, shape) {
  if (!law.counts_embedding) return embeddingAndHead(shape);
  const { own_vocabulary, counted_as_they_are } = law;
  if (own_vocabulary == null || counted_as_they_are.includes(shape.vocab_size)) return 0;
  return embeddingAndHead(shape) - embeddingAndHead({ ...shape, vocab_size: own_vocabulary });
}

/** Training FLOPs of a model by the parameters that the law counts. @type {(law: Law, shape: Shape, model: Optimum) => Flops} */
export function flopsOfLaw(law, shape, { n_active, n_tokens, d_model }) {
  return trainingFlops({ n_active: n_active - uncountedRows(law, shape) * d_model, n_tokens });
}

/** Whether more parameters and more tokens lower the loss; where there are no exponents, the search finds it out.
 *  @type {(law: LawAtExperts) => boolean} */
export function falls({ exponents }) {
  return exponents.every((exponent) => exponent < 0);
}

/** The bootstrap draws of a law. @type {(law: Law) => Draw[]} */
export function drawsOf({ coefficients, bootstrap }) {
  const names = Object.keys(coefficients);
  return (bootstrap?.draws ?? []).map((draw, index) => {
    const byName = Object.fromEntries(names.map((name, i) => [name, draw[i]]));
    return { coefficients: byName, drift: bootstrap.beyond?.drift[index] ?? 0 };
  });
}

/** The percentile by Weibull's positions, p (n + 1). @type {(values: number[], percent: number) => number} */
export function percentile(values, percent) {
  const sorted = [...values].sort((a, b) => a - b);
  const position = Math.min(Math.max((percent / 100) * (sorted.length + 1) - 1, 0), sorted.length - 1);
  const below = Math.floor(position);
  const above = Math.min(below + 1, sorted.length - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (position - below);
}

/** The factor on the loss of a draw for the form's own error beyond the fitted compute.
 *  @type {(law: Law, drift: ?number, flops: Flops) => number} */
export function driftFactor({ bootstrap }, drift, flops) {
  if (!drift) return 1;
  return Math.exp(drift * Math.log(Math.max(flops / bootstrap.beyond.training_flops, 1)));
}

const RANGE_TOLERANCE = 5e-3; // a value so little outside a range is shown as its end

/** Where a model lies outside the law's data.
 *  @type {(law: Law, shape: Shape, model: Optimum) => Outside[]} */
export function outsideRangesOf(law, shape, model) {
  const { n_experts, n_active, n_total, n_tokens, d_model } = model;
  const uncounted = uncountedRows(law, shape) * d_model;
  const columns = {
    ...structureColumns(shape, n_experts),
    n_active: n_active - uncounted,
    n_total: n_total - uncounted,
    n_tokens,
    unique_tokens: n_tokens,
    training_flops: flopsOfLaw(law, shape, model),
    d_model,
    n_blocks: model.n_blocks ?? d_model / shape.width_per_block,
  };
  const followsSize = !law.records_shapes && shape.width_per_block === law.width_of_runs; // n_active says it
  const outside = [];
  for (const [column, [low, high]] of Object.entries({ ...law.ranges, ...(followsSize ? {} : law.shape_ranges) })) {
    const value = columns[column];
    if (low * (1 - RANGE_TOLERANCE) <= value && value <= high * (1 + RANGE_TOLERANCE)) continue;
    const [larger, smaller] = value > high ? [value, high] : [low, value];
    const factor = smaller === 0 ? null : larger / smaller;
    outside.push({ column, value, low, high, factor });
  }
  return outside;
}
