// How many times the compute a law's recipe needs for the losses of the reader's own runs, as fit/planning/speedup.py.

import { fill } from "./answers.js";
import { $ } from "./chart.js";
import { random } from "./fit.js";
import { driftOf, drawsOf, extrapolation, lawAt, percentile } from "./law.js";
import { amount, fixed, flopsText } from "./numbers.js";
import { computeOptimal } from "./solve.js";
import { refusal, safely, say, warningOf } from "./words.js";

// What `fit speedup --json` prints; runs: {n_active, n_tokens, n_experts, loss, file} as the law reads them. Throws
// PlanError with the command line's sentence where the law cannot say.
export function speedup(data, law, runs, seed = 0) {
  if (!law.closed) refusal("NO_SPEEDUP", { law: law.name, form: law.form });
  const flops = runs.loss.map((_, i) => 6 * runs.n_active[i] * runs.n_tokens[i]);
  const logs = runs.loss.map(Math.log);
  const experts = law.knows_experts ? runs.n_experts : logs.map(() => 1);
  const factors = factorsOf(data, law, experts, flops);
  const best = factors(law.coefficients, () => 0)(logs);
  const reached = logs.map((_, i) => i).filter((i) => Number.isFinite(best[i]));
  if (!reached.length) refusal("NONE_REACHED", { file: runs.file, law: law.name, furthest: data.speedup.furthest });
  const draw = random(seed);
  const normal = () => Math.sqrt(-2 * Math.log(draw() + 2 ** -33)) * Math.cos(2 * Math.PI * draw());
  const drawn = drawsOf(law).map((coefficients, k) =>
    factors(coefficients, (flops) => Math.log(driftOf(law, k, flops)))(logs.map((log) => log + (law.noise ?? 0) * normal())).map(
      (factor) => (Number.isFinite(factor) ? factor : Math.log(data.speedup.furthest)),
    ),
  );
  const ends = (values) => (drawn.length ? law.bootstrap.percentiles.map((p) => Math.exp(percentile(values, p))) : null);
  const mean = (values) => values.reduce((sum, v) => sum + v, 0) / values.length;
  const tens = reached.map((i) => Math.log10(flops[i]));
  const several = Math.max(...tens) > Math.min(...tens);
  const at = (factors) => reached.map((i) => factors[i]);
  const apart = tens.map((x) => x - mean(tens));
  const squares = apart.reduce((sum, x) => sum + x * x, 0);
  const slope = (factors) => at(factors).reduce((sum, y, k) => sum + y * apart[k], 0) / squares;
  const rows = logs.map((_, i) => {
    const factor = Number.isFinite(best[i]) ? Math.exp(best[i]) : null;
    const [n_active, n_tokens, loss] = [runs.n_active[i], runs.n_tokens[i], runs.loss[i]];
    const row = { n_active, n_tokens, n_experts: experts[i], loss, flops: flops[i], law_flops: factor && flops[i] * factor };
    return { ...row, factor, interval: factor && ends(drawn.map((one) => one[i])) };
  });
  const most = flops[reached.at(-1)] * Math.exp(Math.max(...at(best)));
  const outside = extrapolation(law, { training_flops: most });
  const result = {
    law: law.name,
    runs: rows,
    factor: Math.exp(mean(at(best))),
    interval: ends(drawn.map((one) => mean(at(one)))),
    per_tenfold: several ? Math.exp(slope(best)) : null,
    per_tenfold_interval: several ? ends(drawn.map(slope)) : null,
    percentiles: drawn.length ? law.bootstrap.percentiles : null,
    warnings: outside.length ? [warningOf(outside), ...(law.warning ? [law.warning] : [])] : [],
  };
  return { ...result, answer: inOneSentence(result) };
}

// Of a draw's coefficients, and what is added to its log losses at some FLOPs: a function of the runs' log losses that
// gives ln of the law's FLOPs over theirs, NaN out of reach.
const factorsOf = (data, law, experts, flops) => {
  const { furthest, points } = data.speedup;
  const [low, high] = [Math.log(Math.min(...flops) / furthest), Math.log(Math.max(...flops) * furthest)];
  const grid = Array.from({ length: points }, (_, k) => low + (k / (points - 1)) * (high - low));
  return (coefficients, more) => {
    const curves = {};
    for (const e of new Set(experts)) {
      const at = lawAt(law, null, e, coefficients);
      curves[e] = grid.map((x) => {
        const size = computeOptimal(at, Math.exp(x));
        return Math.log(at.loss(size, Math.exp(x) / 6 / size)) + more(Math.exp(x));
      });
    }
    return (logs) => logs.map((log, i) => crossing(curves[experts[i]], grid, log) - Math.log(flops[i]));
  };
};

// Where a falling curve over a grid reaches a height; NaN where it does not.
function crossing(curve, grid, height) {
  if (!(curve.at(-1) <= height && height <= curve[0])) return NaN;
  let [low, high] = [0, curve.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (curve[middle] >= height) low = middle;
    else high = middle;
  }
  return grid[low] + ((curve[low] - height) / (curve[low] - curve[high])) * (grid[high] - grid[low]);
}

function inOneSentence({ law, runs, factor, interval, per_tenfold: change, per_tenfold_interval: ends }) {
  const span = (ends) => (ends ? say("SPAN", { ends }) : "");
  const open = ends && ends[0] <= 1 && 1 <= ends[1];
  const values = { change, span: span(ends), how: change > 1 ? "grows" : "falls" };
  const said = change == null ? "" : say(open ? "CHANGE_OPEN" : "CHANGES", values);
  const count = runs.filter((row) => row.factor != null).length;
  return say("SPEEDUP", { count, law, factor, span: span(interval), change: said });
}

const SHOWN = 20; // rows

// The table, the sentence and the command; runs: null where none were dropped.
export function showSpeedup({ data, law }, runs, command) {
  $("speedup").hidden = !runs;
  if (!runs) return;
  let why = null;
  const found = safely(
    () => speedup(data, law, runs),
    (sentence) => (why = sentence),
  );
  $("speedup-answer").textContent = why ?? [found.answer, ...found.warnings].join(" ");
  $("speedup-json").textContent = found ? JSON.stringify(found, null, 1) : "";
  $("speedup-command").textContent = command;
  const head = ["active", "tokens", "E", "loss", "FLOPs", "by the law", "factor", "interval"];
  const rows = (found?.runs ?? []).slice(0, SHOWN).map((row) => [
    ...[amount(row.n_active), amount(row.n_tokens), String(row.n_experts), fixed(row.loss, 4), flopsText(row.flops)],
    ...(row.factor ? [flopsText(row.law_flops), fixed(row.factor, 2)] : ["–", "–"]),
    row.interval ? row.interval.map((x) => fixed(x, 2)).join(" to ") : "–",
  ]);
  fill($("speedup-table"), head, rows);
  const more = (found?.runs.length ?? 0) - rows.length;
  $("speedup-more").textContent = more > 0 ? `and ${more} more runs, in the JSON` : "";
}
