// The laws: loss in nats per token. FORMULAS are the laws' own, in JavaScript (formulas.py).

import { embeddingAndHead, structureColumns, totalParameters, trainingFlops, widthOf } from "./counts.js";

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
  if (law.closed && law.counts_embedding) {
    // A Chinchilla law at each number of experts (Eq. 5); k is 1 unless size and data are coupled.
    const [m, mu, n, nu, c, k = 1] = FORMULAS[law.form].chinchilla_coefficients_at(coefficients, n_experts);
    const lossOfCounts = ({ n_active, n_tokens }) => (m * n_active ** mu + n * n_tokens ** nu) ** k + c;
    const loss = (size, n_tokens) => lossOfCounts({ n_active: sizeOfLaw(law, shape, size, n_experts), n_tokens });
    return { loss, lossOfCounts, exponents: [mu, nu] };
  }
  const entries = formulaEntries(law, coefficients);
  const { log_loss } = FORMULAS[law.form];
  const values = withLogs(structureColumns(shape, n_experts)); // once: a search asks for thousands of losses
  const readsWidth = law.columns.includes("n_total") || !law.counts_embedding;
  function lossOfCounts({ n_active, n_total, n_tokens }) {
    values.n_active = n_active;
    values.n_total = n_total;
    values.n_tokens = n_tokens;
    values["ln n_active"] = Math.log(n_active);
    values["ln n_total"] = Math.log(n_total);
    values["ln n_tokens"] = Math.log(n_tokens);
    return Math.exp(log_loss(entries, values));
  }
  function loss(n_active, n_tokens) {
    const d_model = readsWidth ? widthOf(shape, n_active, n_experts) : 0;
    const n_total = totalParameters(shape, d_model, n_experts);
    return lossOfCounts({ ...countsOfLaw(law, shape, { n_active, n_total, d_model }), n_tokens });
  }
  return { loss, lossOfCounts, exponents: null };
}

/** Active and total parameters as the law counts them: with its own vocabulary, or without embedding and head.
 *  @type {(law: Law, shape: Shape, model: Optimum) => {n_active: Parameters, n_total: Parameters}} */
export function countsOfLaw(law, shape, { n_active, n_total, d_model }) {
  const leftOut = (law.counts_embedding ? foreignRows(law, shape) : embeddingAndHead(shape)) * d_model;
  return { n_active: n_active - leftOut, n_total: n_total - leftOut };
}

// Weights of embedding and head per unit of width beyond those that the law counts models with.
function foreignRows(law, shape) {
  const { own_vocabulary, counted_as_they_are } = law;
  if (own_vocabulary == null || counted_as_they_are.includes(shape.vocab_size)) return 0;
  return embeddingAndHead(shape) - embeddingAndHead({ ...shape, vocab_size: own_vocabulary });
}

// Active parameters with embedding and head, as many as the blocks would have with the law's own vocabulary.
function sizeOfLaw(law, shape, n_active, n_experts) {
  const rows = foreignRows(law, shape);
  return rows === 0 ? n_active : n_active - rows * widthOf(shape, n_active, n_experts);
}

/** Training FLOPs of a model with the law's own vocabulary. @type {(law: Law, shape: Shape, model: Optimum) => Flops} */
export function flopsOfLaw(law, shape, { n_active, n_tokens, n_experts }) {
  return trainingFlops({ n_active: sizeOfLaw(law, shape, n_active, n_experts), n_tokens });
}

/** Whether more parameters and more tokens lower the loss. @type {(law: LawAtExperts) => boolean} */
export function falls({ exponents }) {
  if (exponents == null) return true; // the search for an optimum finds it out
  return exponents.every((exponent) => exponent < 0);
}

/** The coefficients of each bootstrap draw, by name; none where the law has no draws. @type {(law: Law) => object[]} */
export function drawsOf(law) {
  const names = Object.keys(law.coefficients);
  const draws = law.bootstrap?.draws ?? [];
  return draws.map((draw) => Object.fromEntries(names.map((name, i) => [name, draw[i]])));
}

/** The percentile by Weibull's positions, p (n + 1). @type {(values: number[], percent: number) => number} */
export function percentile(values, percent) {
  const sorted = [...values].sort((a, b) => a - b);
  const position = Math.min(Math.max((percent / 100) * (sorted.length + 1) - 1, 0), sorted.length - 1);
  const below = Math.floor(position);
  const above = Math.min(below + 1, sorted.length - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (position - below);
}

/** The factor on the loss of a draw for the form's own error beyond the fitted compute; 1 without a draw.
 *  @type {(law: Law, draw: ?number, flops: Flops) => number} */
export function driftFactor({ bootstrap }, draw, flops) {
  if (draw == null || !bootstrap.beyond) return 1;
  const { beyond } = bootstrap;
  const logDistance = Math.log(Math.max(flops / beyond.training_flops, 1));
  return Math.exp(beyond.drift[draw] * logDistance);
}

const RANGE_TOLERANCE = 5e-3; // a value so little outside a range is shown as its end

/** Where a model lies outside the law's data. Its n_total may be missing.
 *  @type {(law: Law, shape: Shape, model: Optimum) => Outside[]} */
export function outsideRangesOf(law, shape, model) {
  const { n_experts, n_active, n_tokens } = model;
  const d_model = model.d_model ?? widthOf(shape, n_active, n_experts);
  const n_total = model.n_total ?? totalParameters(shape, d_model, n_experts);
  const columns = {
    ...structureColumns(shape, n_experts),
    ...countsOfLaw(law, shape, { n_active, n_total, d_model }),
    n_tokens,
    training_flops: flopsOfLaw(law, shape, model),
  };
  const names = [...law.columns, ...law.fixed, "training_flops"];
  const ranges = names.filter((name) => name in law.ranges).map((name) => [name, columns[name], ...law.ranges[name]]);
  const { unique_tokens } = law.models;
  if (law.columns.includes("n_tokens") && unique_tokens) {
    ranges.push(["unique_tokens", n_tokens, 0, unique_tokens]);
  }
  return outsideOf([...ranges, ...shapeRanges(law, shape, d_model, model.n_blocks)]);
}

// Those of [column, value, low, high] whose value lies outside.
function outsideOf(ranges) {
  const outside = [];
  for (const [column, value, low, high] of ranges) {
    const isInside = low * (1 - RANGE_TOLERANCE) <= value && value <= high * (1 + RANGE_TOLERANCE);
    if (value === undefined || isInside) continue;
    const factor = value > high ? value / high : low / value;
    outside.push({ column, value, low, high, factor });
  }
  return outside;
}

// Width and depth of a model, with the ranges of the law's runs.
function shapeRanges(law, { width_per_block }, d_model, n_blocks = d_model / width_per_block) {
  const { shape_ranges, records_shapes, models } = law;
  if (!records_shapes && width_per_block === models.width_per_block) return []; // n_active says it
  const values = { d_model, n_blocks };
  return Object.entries(shape_ranges).map(([name, ends]) => [name, values[name], ...ends]);
}
