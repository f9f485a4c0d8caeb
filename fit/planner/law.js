// The laws: loss in nats per token. FORMULAS are the laws' own, in JavaScript (formulas.py).

import { TRAINING_FLOPS, endsOf, structure, totalParameters, widthOf } from "./counts.js";

/* global FORMULAS */

// The coefficients by name, with the entries that formulas read beside them: "ln a", "ln(E_max / E_start - 1)".
function entriesOf(law, coefficients) {
  const entries = { ...coefficients };
  for (const [name, positive, above] of law.entries) {
    if (positive) entries[`ln ${name}`] = Math.log(coefficients[name]);
    if (above) entries[`ln(${name} / ${above} - 1)`] = Math.log(coefficients[name] / coefficients[above] - 1);
  }
  return entries;
}

function lossOfEntries(law, entries, columns) {
  const values = {};
  for (const name of law.columns) {
    values[name] = columns[name];
    values[`ln ${name}`] = Math.log(columns[name]);
  }
  return Math.exp(FORMULAS[law.form].log_loss(entries, values));
}

// The loss of a run or a model given by its columns.
export const lossOfColumns = (law, columns) => lossOfEntries(law, entriesOf(law, law.coefficients), columns);

// The law at e experts of models of a shape: {loss(size, tokens), exponents of size and tokens there, or null}.
// coefficients: those of a bootstrap draw, else the law's own.
export function lawAt(law, shape, e, coefficients = law.coefficients) {
  if (law.closed && law.counts_embedding) {
    // A Chinchilla law at each number of experts (Eq. 5); k is 1 but where size and data are coupled.
    const [m, mu, n, nu, c, k = 1] = FORMULAS[law.form].chinchilla_coefficients_at(coefficients, e);
    return { loss: (size, tokens) => (m * size ** mu + n * tokens ** nu) ** k + c, exponents: [mu, nu] };
  }
  const entries = entriesOf(law, coefficients);
  const fixed = structure(shape, e);
  const readsWidth = law.columns.includes("n_total") || !law.counts_embedding;
  function loss(size, tokens) {
    const d = readsWidth ? widthOf(shape, size, e) : 0;
    const counts = ownCounts(law, shape, { n_active: size, n_total: totalParameters(shape, d, e), d_model: d });
    return lossOfEntries(law, entries, { ...fixed, ...counts, n_tokens: tokens });
  }
  return { loss, exponents: null };
}

// Active and total parameters as the law counts them: some leave embedding and head out.
export function ownCounts(law, shape, { n_active, n_total, d_model }) {
  const left_out = law.counts_embedding ? 0 : endsOf(shape) * d_model;
  return { n_active: n_active - left_out, n_total: n_total - left_out };
}

// Whether size and data both lower the loss; of a law without exponents, the search for an optimum finds that out.
export const falls = ({ exponents }) => !exponents || exponents.every((exponent) => exponent < 0);

// The coefficients of each bootstrap draw, by name; none where the law has no draws.
export function drawsOf(law) {
  const names = Object.keys(law.coefficients);
  const asObject = (draw) => Object.fromEntries(names.map((name, i) => [name, draw[i]]));
  law.draws ??= (law.bootstrap?.draws ?? []).map(asObject);
  return law.draws;
}

// The percentile of values by Weibull's positions, p (n + 1).
export function percentile(values, percent) {
  const sorted = [...values].sort((a, b) => a - b);
  const at = Math.min(Math.max((percent / 100) * (sorted.length + 1) - 1, 0), sorted.length - 1);
  const below = Math.floor(at);
  const above = Math.min(below + 1, sorted.length - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (at - below);
}

// The factor on the i-th draw's loss for the form's own error beyond the fitted compute.
export function driftOf(law, i, training_flops) {
  const { beyond } = law.bootstrap;
  if (!beyond) return 1;
  return Math.exp(beyond.drift[i] * Math.log(Math.max(training_flops / beyond.training_flops, 1)));
}

const RANGE_TOLERANCE = 5e-3; // a value so little outside a range is shown as its end

// What of columns lies outside the range of the law's runs: [{column, value, low, high, factor}].
export function extrapolation(law, columns) {
  const all = { training_flops: TRAINING_FLOPS * columns.n_active * columns.n_tokens, ...columns };
  const ranges = [...law.columns, ...law.fixed, "training_flops"]
    .filter((column) => column in law.ranges)
    .map((column) => [column, all[column], ...law.ranges[column]]);
  if (law.columns.includes("n_tokens") && law.models.unique_tokens)
    ranges.push(["unique_tokens", columns.n_tokens, 0, law.models.unique_tokens]);
  return ranges.flatMap(([column, value, low, high]) => {
    if (value === undefined) return [];
    if (low * (1 - RANGE_TOLERANCE) <= value && value <= high * (1 + RANGE_TOLERANCE)) return [];
    return [{ column, value, low, high, factor: value > high ? value / high : low / value }];
  });
}

// The same of a model of a shape with these counts; n_total and d_model may be missing.
export function extrapolationOf(law, shape, { n_experts, n_active, n_tokens, n_total, d_model }) {
  const columns = { ...structure(shape, n_experts), n_active, n_tokens };
  if (n_total) columns.n_total = ownCounts(law, shape, { n_active, n_total, d_model }).n_total;
  return extrapolation(law, columns);
}
