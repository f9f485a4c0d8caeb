// The laws: loss over what they read of a model, in nats per token. FORMULAS are generated from the laws' pages in
// fit/laws/ (formulas.py). Where a law is a Chinchilla law at each number of experts, it is
//   L = (m N^mu + n D^nu)^k + c there (Eq. 5); k is 1 but for those whose size and data are coupled.

import { endsOf, structure, total, widthOf } from "./counts.js";

/* global FORMULAS */

// The coefficients by name, with the entries that formulas read beside them: "ln a", "ln(E_max / E_start - 1)".
function entriesOf(law, coefficients) {
  const c = { ...coefficients };
  for (const [name, positive, above] of law.entries) {
    if (positive) c[`ln ${name}`] = Math.log(c[name]);
    if (above) c[`ln(${name} / ${above} - 1)`] = Math.log(c[name] / c[above] - 1);
  }
  return c;
}

// The coefficients of `free`, a number for each entry, by name, with the entries by theirs; as fit/form.py.
export function byName({ entries }, free) {
  const c = {};
  entries.forEach(([name, positive, above, share], i) => {
    if (above) {
      c[`ln(${name} / ${above} - 1)`] = free[i];
      c[`ln ${name}`] = c[`ln ${above}`] + Math.max(free[i], 0) + Math.log1p(Math.exp(-Math.abs(free[i])));
    } else if (positive) c[`ln ${name}`] = free[i];
    c[name] = share ? 1 / (1 + Math.exp(free[i])) : positive ? Math.exp(c[`ln ${name}`]) : free[i];
  });
  return c;
}

// The loss of columns by name.
function lossOfColumns(law, c, columns) {
  const x = {};
  for (const name of law.columns) {
    x[name] = columns[name];
    x[`ln ${name}`] = Math.log(columns[name]);
  }
  return Math.exp(FORMULAS[law.form].log_loss(c, x));
}
export const lossOfRun = (law, columns) => lossOfColumns(law, entriesOf(law, law.coefficients), columns);

// The law at e experts of models of a shape: {closed: [m, mu, n, nu] or null, loss(size, tokens), at(size, tokens, counts),
// unique, slack}. coefficients: a draw's, else the law's own. at: the loss of a built model, which has counts of its own.
// unique: how many tokens of text there are, if the law is one of repeated text; slack: on a plateau the smallest model is
// taken whose loss is within this share of the lowest; 0: the one of the lowest.
export function lawAt(law, shape, e, coefficients = law.coefficients) {
  // a law that counts without embedding and head is asked for the loss of its own counts
  if (law.closed && law.counts_embedding) {
    const closed = FORMULAS[law.form].at_experts(coefficients, e);
    const [m, mu, n, nu, c, k = 1] = closed;
    const { unique, slack } = law;
    const fresh = (size, tokens) => (m * size ** mu + n * tokens ** nu) ** k + c;
    const loss = unique === undefined ? fresh : (size, tokens) => fresh(...effective(closed, unique, size, tokens));
    return { closed, loss, at: loss, unique, slack, searched: unique !== undefined };
  }
  const [c, own] = [entriesOf(law, coefficients), structure(shape, e)];
  const at = (size, tokens, n_total, d) => {
    const less = law.counts_embedding ? 0 : endsOf(shape) * d;
    return lossOfColumns(law, c, { ...own, n_active: size - less, n_total: n_total - less, n_tokens: tokens });
  };
  const reads = law.columns.includes("n_total") || !law.counts_embedding;
  const loss = (size, tokens) => {
    const d = reads ? widthOf(shape, size, e) : 0;
    return at(size, tokens, reads ? total(shape, d, e) : 0, d);
  };
  return { closed: null, loss, at, searched: true };
}

// What a size and tokens of repeated text are worth, by Muennighoff et al. 2023; constants as in fit/planning/repeats.py.
export const [R_D, R_N] = [15.387756, 5.309743];
export function effective([m, mu, n, nu], unique, size, tokens) {
  const worth = (amount, of, decay) => of * (1 - decay * Math.expm1((1 - amount / of) / decay));
  const fresh = Math.min(tokens, unique);
  const best = mu < 0 && nu < 0 ? ((n * nu * fresh ** nu) / (m * mu)) ** (1 / mu) : Infinity;
  return [worth(size, Math.min(size, best), R_N), worth(tokens, fresh, R_D)];
}

// The law for `unique` tokens of text that are read several times; and the same law for text without end.
export const repeated = (law, unique, slack) => (drawsOf(law), { ...law, unique, slack, fresh: law });
export const fresh = (law) => law.fresh ?? law;

// The coefficients of each bootstrap draw, by name; none where the law has no draws.
export function drawsOf(law) {
  law.byName ??= (law.bootstrap?.draws ?? []).map((row) =>
    Object.fromEntries(Object.keys(law.coefficients).map((name, i) => [name, row[i]])),
  );
  return law.byName;
}

// Whether size and data both lower the loss, as far as the form says so by itself.
export const falls = ({ closed, searched }) => searched || (closed[1] < 0 && closed[3] < 0);

// The percentile of values by Weibull's positions, p (n + 1).
export function percentile(values, percent) {
  const sorted = [...values].sort((a, b) => a - b);
  const at = Math.min(Math.max((percent / 100) * (sorted.length + 1) - 1, 0), sorted.length - 1);
  const below = Math.floor(at);
  const above = Math.min(below + 1, sorted.length - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (at - below);
}

// The factor that the form's own error beyond the fitted runs puts on the loss of the i-th draw, of a model trained with
// these FLOPs; as log_change in fit/lawbook/lawfile.py.
export function driftOf(law, i, flops) {
  const { beyond } = law.bootstrap;
  return beyond ? Math.exp(beyond.drift[i] * Math.log(Math.max(flops / beyond.training_flops, 1))) : 1;
}

// [low, high] percentiles over the draws of the loss of one model; null without draws.
export function bandOf(law, shape, size, tokens, e) {
  const losses = drawsOf(law)
    .map((draw, i) => lawAt(law, shape, e, draw).loss(size, tokens) * driftOf(law, i, 6 * size * tokens))
    .filter(Number.isFinite);
  return 2 * losses.length > drawsOf(law).length ? law.bootstrap.percentiles.map((p) => percentile(losses, p)) : null;
}

const ROUNDING = 5e-3; // less than this share outside a range is inside: three digits would not show it

// What of columns by name lies outside what the law was fitted to: [{column, value, low, high, factor}].
export function extrapolation(law, columns) {
  const asked = { training_flops: 6 * columns.n_active * columns.n_tokens, ...columns };
  const outside = [];
  const add = (column, value, low, high) => {
    if (value !== undefined && !(low * (1 - ROUNDING) <= value && value <= high * (1 + ROUNDING)))
      outside.push({ column, value, low, high, factor: value > high ? value / high : low / value });
  };
  for (const column of [...law.columns, ...law.fixed, "training_flops"])
    if (column in law.ranges) add(column, asked[column], ...law.ranges[column]);
  if (law.columns.includes("n_tokens") && law.models.unique_tokens)
    add("unique_tokens", columns.n_tokens, 0, law.models.unique_tokens);
  return outside;
}

// The same of a model of a shape, of which the law reads n_total only where it is known.
export const outsideOf = (law, shape, size, tokens, e, n_total, d) =>
  extrapolation(law, {
    n_active: size,
    n_tokens: tokens,
    ...(n_total && { n_total: n_total - (law.counts_embedding ? 0 : endsOf(shape) * d) }),
    ...structure(shape, e),
  });
