// The laws: loss over active parameters N, training tokens D and experts E, in nats per token. A law is
//   L = (m N^mu + n D^nu)^k + c at each number of experts (Eq. 5); k is 1 but for those whose size and data are coupled.

const REDUCED = {
  // Eq. 4 and 6 of Ludziejewski et al. 2025; E scaled runs from E_start (dense) towards E_max
  joint(c, e) {
    const scaled = 1 / (1 / (e - 1 + 1 / (1 / c.E_start - 1 / c.E_max)) + 1 / c.E_max);
    const log = Math.log(scaled);
    return [c.a * scaled ** c.delta, c.alpha + c.gamma * log, c.b * scaled ** c.omega, c.beta + c.zeta * log, c.c];
  },
  // Hoffmann et al. 2022, the same for every E
  chinchilla: (c) => [c.A, -c.alpha, c.B, -c.beta, c.E],
};

// [m, mu, n, nu, c, unique, slack, k] of the law at e experts; coefficients: a draw's, else the law's own. unique: how many
// tokens of text there are, if the law is one of repeated text; else undefined. slack: on a plateau the smallest model
// is taken whose loss is within this share of the lowest; 0: the one of the lowest.
export const reducedAt = (law, e, coefficients = law.coefficients) => [
  ...REDUCED[law.form.replace("_coupled", "")](coefficients, e),
  law.unique,
  law.slack,
  coefficients.k ?? 1,
];

export function lossOf(at, size, tokens) {
  const [m, mu, n, nu, c, unique, , k] = at;
  if (unique !== undefined) [size, tokens] = effective(at, size, tokens);
  return (m * size ** mu + n * tokens ** nu) ** k + c;
}

// What a size and tokens of repeated text are worth, by Muennighoff et al. 2023; constants as in fit/planning/repeats.py.
export const [R_D, R_N] = [15.387756, 5.309743];
export function effective([m, mu, n, nu, , unique], size, tokens) {
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

// The percentile of values by Weibull's positions, p (n + 1).
export function percentile(values, percent) {
  const sorted = [...values].sort((a, b) => a - b);
  const at = Math.min(Math.max((percent / 100) * (sorted.length + 1) - 1, 0), sorted.length - 1);
  const below = Math.floor(at);
  const above = Math.min(below + 1, sorted.length - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (at - below);
}

// The factor that the form's own error beyond the fitted runs puts on the loss of the i-th draw, of a model trained with
// these FLOPs; as fit/lawbook/intervals.py.
export function driftOf(law, i, flops) {
  const { beyond } = law.bootstrap;
  return beyond ? Math.exp(beyond.drift[i] * Math.log(Math.max(flops / beyond.training_flops, 1))) : 1;
}

// [low, high] percentiles over the draws of the loss of one model; null without draws.
export function bandOf(law, size, tokens, e) {
  const losses = drawsOf(law)
    .map((draw, i) => lossOf(reducedAt(law, e, draw), size, tokens) * driftOf(law, i, 6 * size * tokens))
    .filter(Number.isFinite);
  return 2 * losses.length > drawsOf(law).length ? law.bootstrap.percentiles.map((p) => percentile(losses, p)) : null;
}

const ROUNDING = 5e-3; // less than this share outside a range is inside: three digits would not show it

// What of a model lies outside what the law was fitted to: [{column, value, low, high, factor}].
export function extrapolation(law, size, tokens, e, training) {
  const asked = { n_active: size, n_tokens: tokens, n_experts: e, training_flops: training ?? 6 * size * tokens };
  const outside = [];
  const add = (column, value, low, high) => {
    if (value !== undefined && !(low * (1 - ROUNDING) <= value && value <= high * (1 + ROUNDING)))
      outside.push({ column, value, low, high, factor: value > high ? value / high : low / value });
  };
  for (const column of [...law.columns, "training_flops"])
    if (column in law.ranges) add(column, asked[column], ...law.ranges[column]);
  if (law.columns.includes("n_tokens") && law.models.unique_tokens)
    add("unique_tokens", tokens, 0, law.models.unique_tokens);
  return outside;
}
