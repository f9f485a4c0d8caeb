// Fits a law to runs in the browser: the objective of fit/fitting/problem.py without weights and decay, the sum of the
// Huber losses of the log loss, by Levenberg-Marquardt on their square root. The solver moves `free` of fit/form.py for
// columns whose mean logarithm is taken off.

import { byName, percentile } from "./law.js";
import { format, percent } from "./numbers.js";

const DELTA = 0.01; // of the Huber loss, in log loss
// Starts and their steps; how many of the best go on, and how far; the steps of the best of these, and of a draw.
const [STARTS, SEARCH, FOLLOWED, FURTHER, POLISH, AGAIN] = [48, 20, 6, 60, 400, 15];
const DRAWS = 40; // fits to the law's own losses with the runs' errors drawn anew
const FACTORS = [2, 3, 10]; // of compute, as fit/fitting/sure.py
const [PER_COEFFICIENT, FEWEST] = [3, 3]; // runs fitted at least, and predicted

const pause = () => new Promise((done) => setTimeout(done));

// Numbers from 0 to 1, the same ones every time.
export function random(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

// The runs `rows` as a form reads them, and ln of their losses.
function problemOf(form, runs, rows) {
  const columns = rows.map((i) => {
    const x = {};
    for (const name of form.columns) [x[name], x[`ln ${name}`]] = [runs[name][i], Math.log(runs[name][i])];
    return x;
  });
  const mean = (name) => columns.reduce((sum, x) => sum + x[`ln ${name}`], 0) / rows.length;
  const centred = [...new Set(form.slopes.flatMap((slopes) => Object.keys(slopes)))];
  const centre = Object.fromEntries(centred.map((name) => [name, mean(name)]));
  return { form, columns, centre, logs: rows.map((i) => Math.log(runs.loss[i])) };
}

// free, for columns from which nothing (sign -1) or the centre (sign 1) is taken off.
function recentred({ form, centre }, free, sign) {
  const index = (name) => form.entries.findIndex(([own]) => own === name);
  return free.map((value, i) =>
    Object.entries(form.slopes[i]).reduce(
      (sum, [column, [other, divisor]]) => sum + (sign * free[index(other)] * centre[column]) / divisor,
      value,
    ),
  );
}

const freeOf = (problem, x) =>
  recentred(problem, x, -1).map((value, i) => Math.min(Math.max(value, problem.form.bounds[i][0]), problem.form.bounds[i][1]));

const logLosses = ({ form, columns }, free) => {
  const c = byName(form, free);
  return columns.map((x) => form.log_loss(c, x));
};

// The roots of twice the Huber losses, and the objective, half the sum of their squares.
function residuals(problem, x) {
  return logLosses(problem, freeOf(problem, x)).map((predicted, i) => {
    const r = predicted - problem.logs[i];
    const size = Math.abs(r);
    return size > DELTA ? Math.sign(r) * Math.sqrt(2 * DELTA * size - DELTA ** 2) : r;
  });
}
const objective = (r) => r.reduce((sum, v) => sum + v * v, 0) / 2;

// x of a x = b, a symmetric and positive.
function solved(a, b) {
  const rows = a.map((row, i) => [...row, b[i]]);
  rows.forEach((pivot, k) => {
    const best = rows.slice(k).reduce((most, row, i) => (Math.abs(row[k]) > Math.abs(rows[most][k]) ? k + i : most), k);
    [rows[k], rows[best]] = [rows[best], rows[k]];
    for (let i = k + 1; i < rows.length; i++) {
      const times = rows[i][k] / rows[k][k];
      for (let j = k; j < rows[i].length; j++) rows[i][j] -= times * rows[k][j];
    }
  });
  const x = b.map(() => 0);
  for (let k = b.length - 1; k >= 0; k--)
    x[k] = (rows[k].at(-1) - x.reduce((sum, v, j) => (j > k ? sum + v * rows[k][j] : sum), 0)) / rows[k][k];
  return x;
}

// [x, objective] after at most so many steps from x; slopes by differences to one side, or to both if `exact`.
function descended(problem, x, steps, exact = false) {
  let r = residuals(problem, x);
  let [best, damping] = [objective(r), 1e-2];
  for (let step = 0, still = 0; step < steps && still < 4; step++) {
    const jacobian = x.map((value, j) => {
      const h = (exact ? 1e-6 : 1e-7) * Math.max(1, Math.abs(value));
      const at = (v) => residuals(problem, x.with(j, v));
      const [up, down] = [at(value + h), exact ? at(value - h) : r];
      return up.map((v, i) => (v - down[i]) / (exact ? 2 * h : h));
    });
    const dot = (a, b) => a.reduce((sum, v, i) => sum + v * b[i], 0);
    const normal = jacobian.map((a) => jacobian.map((b) => dot(a, b)));
    const gradient = jacobian.map((a) => -dot(a, r));
    let gained = 0;
    for (let tries = 0; tries < 12 && !gained; tries++) {
      const damped = normal.map((row, i) => row.with(i, row[i] * (1 + damping) + 1e-14));
      const next = x.map((v, i) => v + solved(damped, gradient)[i]);
      const after = residuals(problem, next);
      const value = objective(after);
      if (value < best) {
        gained = 1 - value / best;
        [x, r, best, damping] = [next, after, value, Math.max(damping / 5, 1e-12)];
      } else damping *= 4;
    }
    still = gained < 1e-11 ? still + 1 : 0;
    if (damping > 1e12) break;
  }
  return [x, best];
}

// A random start: the floor and the terms, which are the coefficients with slopes, share the loss of the mean run;
// exponents of one sign are drawn within their published starts, others near zero.
function randomStart({ form, logs }, draw) {
  const mean = logs.reduce((sum, v) => sum + v, 0) / logs.length;
  const floor = (0.2 + 0.75 * draw()) * Math.exp(Math.min(...logs));
  return form.entries.map(([, positive, above], i) => {
    const [low, high] = form.spans[i];
    const within = low + draw() * (high - low);
    if (positive && Object.keys(form.slopes[i]).length) return Math.log((0.1 + 0.8 * draw()) * (Math.exp(mean) - floor));
    if (positive && form.bounds[i][1] < 10) return Math.log(floor);
    if (positive || above) return within + draw() - 0.5;
    return low * high > 0 ? low * (high / low) ** draw() : 0.2 * within;
  });
}

// The best x of several starts: those given and random ones.
async function bestOfStarts(problem, starts, given = []) {
  const draw = random(1);
  const tried = [...given, ...Array.from({ length: starts }, () => randomStart(problem, draw))];
  const ends = [];
  for (const x of tried) {
    const end = descended(problem, x, SEARCH);
    if (Number.isFinite(end[1])) ends.push(end);
    await pause();
  }
  const best = (all) => all.sort((a, b) => a[1] - b[1]).slice(0, FOLLOWED);
  const further = [];
  for (const [x] of best(ends)) {
    further.push(descended(problem, x, FURTHER));
    await pause();
  }
  const [first] = best(further);
  return first ? descended(problem, first[0], POLISH, true) : null;
}

// A law fitted to runs, as the page holds laws, with its objective, errors and rolling hold-outs; null where no start
// led anywhere. data.forms names what a form is; shape: {vocab_size, width_per_block} of all runs, where it is known.
export async function fitted(data, formName, runs, file, shape) {
  const form = { ...data.forms[formName], log_loss: FORMULAS[formName].log_loss };
  const rows = runs.loss.map((_, i) => i);
  const flops = rows.map((i) => 6 * runs.n_active[i] * runs.n_tokens[i]);
  const problem = problemOf(form, runs, rows);
  const best = await bestOfStarts(problem, STARTS);
  if (!best) return null;
  const free = freeOf(problem, best[0]);
  const coefficientsOf = (free) => form.entries.map(([name]) => byName(form, free)[name]);
  const predicted = logLosses(problem, free);
  const errors = predicted.map((p, i) => problem.logs[i] - p);
  const [draw, wider] = [random(2), Math.sqrt(rows.length / Math.max(rows.length - form.entries.length, 1))];
  const draws = [];
  for (let k = 0; k < DRAWS; k++) {
    const logs = predicted.map((p) => p + wider * errors[Math.floor(draw() * errors.length)]);
    draws.push(coefficientsOf(freeOf(problem, descended({ ...problem, logs }, best[0], AGAIN)[0])));
    await pause();
  }
  const named = (values) => Object.fromEntries(form.entries.map(([name], i) => [name, values[i]]));
  const coefficients = named(coefficientsOf(free));
  const ends = (values) => [Math.min(...values), Math.max(...values)];
  const law = {
    ...data.forms[formName],
    ...{ name: "law.json", form: formName, coefficients, counts_embedding: true, published: false },
    ...{ own: null, dense: null, fixed: [], notes: [], fixes_experts: false, final_norm: false },
    ...{ origin: `Fitted here to ${rows.length} runs of ${file}.`, models: shape, shape: { ...data.paper.shape, ...shape } },
    ...{ configs: null, override_values: {}, foreign_config: false, warning: "", holdout: null },
    experts: form.knows_experts ? [...new Set(runs.n_experts)].sort((a, b) => a - b) : [1],
    ranges: Object.fromEntries([...form.columns.map((name) => [name, ends(runs[name])]), ["training_flops", ends(flops)]]),
    bootstrap: { form: "errors", percentiles: [10, 90], by: "runs", draws, beyond: null, drawn: data.drawn },
  };
  return { law, objective: best[1], error: meanError(errors), rolling: await rolling(form, runs, flops, best[0], problem) };
}

const meanError = (errors) => errors.reduce((sum, e) => sum + Math.abs(Math.expm1(e)), 0) / errors.length;

// How far a law fitted to the runs of at most 1 / factor of the largest compute is off for the others.
async function rolling(form, runs, flops, x, problem) {
  const [most, out] = [Math.max(...flops), []];
  for (const factor of FACTORS) {
    const [inside, outside] = [[], []];
    flops.forEach((f, i) => (f <= most / factor ? inside : outside).push(i));
    if (inside.length < PER_COEFFICIENT * form.entries.length || outside.length < FEWEST) continue;
    const smaller = problemOf(form, runs, inside);
    const [best] = await bestOfStarts(smaller, 8, [recentred(smaller, freeOf(problem, x), 1)]);
    const others = problemOf(form, runs, outside);
    const off = logLosses(others, freeOf(smaller, best)).map((p, i) => p - others.logs[i]);
    out.push({ factor, fitted: inside.length, predicted: outside.length, error: meanError(off) });
  }
  return out;
}

// What a fit says of itself, sentence by sentence.
export function fitInWords({ law, objective, error, rolling }) {
  const names = Object.keys(law.coefficients);
  const [low, high] = [10, 90].map((p) => names.map((_, i) => percentile(law.bootstrap.draws.map((row) => row[i]), p)));
  const one = (name, i) =>
    format("{name} {v:.4g} ({low:.4g} to {high:.4g})", { name, v: law.coefficients[name], low: low[i], high: high[i] });
  const count = law.origin.match(/\d+/)[0];
  const out = [
    `${law.form}: ${names.map(one).join(", ")}; 10th to 90th percentile of ${DRAWS} fits to new errors.`,
    `Mean error of the ${count} runs ${percent(error)}; objective ${objective.toExponential(6)}.`,
  ];
  for (const { factor, fitted, predicted, error } of rolling)
    out.push(`Fitted to the ${fitted} runs of at most 1/${factor} of the compute, it is ${percent(error)} off the other ${predicted}.`);
  if (!rolling.length) out.push("The runs are too few, or too alike in compute, to say how well it predicts larger ones.");
  if (count < PER_COEFFICIENT * names.length) out.push(`${count} runs are few for ${names.length} coefficients: expect wide errors.`);
  const open = names.filter((name, i) => law.coefficients[name] && (high[i] - low[i]) / Math.abs(law.coefficients[name]) > 1);
  if (open.length) out.push(`The runs hardly settle ${open.join(", ")}.`);
  out.push("Intervals are those of the runs' scatter alone; the command adds the form's own error beyond the runs.");
  return out;
}
