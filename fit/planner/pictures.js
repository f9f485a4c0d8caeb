// The pictures of a plan. ask = {data, law, shape, limits, experts}: what was asked; plan: its answer; runs: columns.

import { front } from "./cost.js";
import { limitsAt, memoryOf, tokensOf } from "./counts.js";
import { draw } from "./chart.js";
import { bandOf, lawAt, lossOfRun, outsideOf } from "./law.js";
import { amount, duration, fixed, flopsText, memoryText, percent, typed } from "./numbers.js";
import { bestOf, largestIn, optima, solve } from "./solve.js";

const POINTS = 72; // of a curve
const NEAR = 1.25; // a run belongs to a budget within this factor of it

export const spread = (low, high, n) => Array.from({ length: n }, (_, i) => low * (high / low) ** (i / (n - 1)));
export const inBytes = { log: true, format: memoryText };
const inCounts = { log: true, format: amount };

// How a number of experts looks among those of the law and the plan: {share of the colours, kind of marker}.
export function looksOf(experts) {
  const last = Math.log(Math.max(...experts, 2));
  return Object.fromEntries(experts.map((e, kind) => [e, { share: Math.log(e) / last, kind }]));
}

// [low, high] of losses worth showing: from the least, as far as the planned ones go, at most a tenth above.
function worthShowing(planned, others = []) {
  const least = Math.min(...planned, ...others);
  const most = Math.max(...planned.map((loss) => Math.min(loss, 1.1 * least)), 1.015 * least, ...others);
  return { low: least - 0.12 * (most - least), high: most + 0.5 * (most - least) };
}

// The runs with about the tokens that the limits buy for their size: {i, n_active, loss}, the loss moved along the law to
// just those tokens, where its distance from the curve is the run's own error.
const nearBudget = (runs, law, shape, limits) =>
  runs.loss.flatMap((loss, i) => {
    const [n_active, tokens] = [runs.n_active[i], tokensOf(limitsAt(limits, runs.n_experts[i]), runs.n_active[i])];
    if (!(Math.abs(Math.log(runs.n_tokens[i] / tokens)) < Math.log(NEAR))) return [];
    const at = lawAt(law, shape, runs.n_experts[i]);
    return [{ i, n_active, loss: (loss * at.loss(n_active, tokens)) / at.loss(n_active, runs.n_tokens[i]) }];
  });

// Loss against size at the plan's budget, a curve for each E; faint where memory forbids.
export function isoflop(picture, { law, shape, limits, experts }, plan, looks, runs) {
  if (limits.flops == null) return "needs a budget of FLOPs";
  const ofBest = limitsAt(limits, plan.best.n_experts);
  const near = runs ? nearBudget(runs, law, shape, limits).filter(({ i }) => experts.includes(runs.n_experts[i])) : [];
  const free = optima(law, shape, { ...limits, memory_bytes: null }, experts).filter((o) => o.feasible);
  const sizes = [...plan.optima, ...free].map((o) => o.n_active).concat(near.map((run) => run.n_active));
  const grid = spread(Math.min(...sizes) / 4, Math.max(...sizes) * 4, POINTS).filter(
    (size) => tokensOf(ofBest, size) >= 1,
  );
  const lines = experts.map((e) => {
    const at = lawAt(law, shape, e);
    const tokens = grid.map((size) => tokensOf(limitsAt(limits, e), size));
    const largest = largestIn(e, shape, limits);
    const best = e === plan.best.n_experts; // bands of all would cover each other
    const bands = best ? grid.map((size, i) => [size, bandOf(law, shape, size, tokens[i], e)]).filter(([, band]) => band) : [];
    return {
      e,
      ...looks[e],
      points: grid.map((size, i) => [size, at.loss(size, tokens[i])]),
      dashed: grid.map((size, i) => outsideOf(law, shape, size, tokens[i], e).length > 0),
      faint: grid.map((size) => size > largest),
      band: bands.map(([size, [low, high]]) => [size, low, high]),
    };
  });
  const sure = plan.bootstrap?.optima.find((row) => row.n_experts === plan.best.n_experts);
  const y = worthShowing(
    plan.optima.map((o) => o.loss),
    [...(sure?.loss ?? []), ...free.map((o) => o.loss), ...near.map((run) => run.loss)],
  );
  draw(picture, {
    x: { ...inCounts, low: grid[0], high: grid.at(-1), label: "active parameters" },
    y: { ...y, label: "loss, nats per token" },
    lines,
    dots: [
      ...near.map(({ i, n_active, loss }) => ({
        x: n_active,
        y: loss,
        ...looks[runs.n_experts[i]],
        r: 3,
        hollow: runs.held_out[i],
      })),
      ...plan.optima.map((o) => ({ x: o.n_active, y: o.loss, ...looks[o.n_experts] })),
      { x: plan.best.n_active, y: plan.best.loss, ring: true, r: 8 },
    ],
    across: true,
    first: grid.findIndex((size) => size >= plan.best.n_active),
    stops: grid.map((size, i) => ({
      x: size,
      y: y.high,
      dots: lines.map(({ points }) => points[i]),
      text: [
        `${amount(size)} active, ${amount(tokensOf(ofBest, size))} tokens`,
        ...lines.map(
          ({ e, points, faint }) =>
            `E = ${e}: ${fixed(points[i][1], 4)}${faint[i] ? ", too large for the memory" : ""}`,
        ),
      ].join("\n"),
    })),
  });
  const moved = near.length ? "; runs of about as many, moved to it along the law" : "";
  return `${flopsText(ofBest.flops)} training FLOPs${moved}`;
}

// n memories to draw: from a part of what the best dense model takes without a limit to more than any optimum takes.
export function memories(law, shape, limits, experts, n) {
  const d = shape.width_per_block;
  const free = optima(law, shape, { ...limits, memory_bytes: null }, experts).filter((o) => o.feasible);
  const most = 1.5 * Math.max(...free.map((o) => memoryOf(shape, limits, o.d_model, o.n_experts)));
  const dense = free[0];
  const least = Math.max(memoryOf(shape, limits, d, 1), memoryOf(shape, limits, dense.d_model, dense.n_experts) / 8);
  return spread(Math.min(least, limits.memory_bytes ?? Infinity), Math.max(most, 1.2 * (limits.memory_bytes ?? 0)), n);
}

// The stretches of a grid over which one number of experts is the best; best: the optimum at each place, or null.
function stripsOf(best, grid, looks) {
  const strips = [];
  best.forEach((o, k) => {
    if (!o) return;
    const to = grid[Math.min(k + 1, grid.length - 1)];
    if (strips.at(-1)?.label === `${o.n_experts}`) strips.at(-1).to = to;
    else strips.push({ from: grid[k], to, ...looks[o.n_experts], label: `${o.n_experts}` });
  });
  return strips;
}

// The best loss against memory, a curve for each E; the foot says which E is the best.
export function againstMemory(picture, { law, shape, limits, experts }, plan, looks, choose) {
  if (limits.flops == null) return "needs a budget of FLOPs";
  const grid = memories(law, shape, limits, experts, POINTS);
  const laws = experts.map((e) => lawAt(law, shape, e));
  const rows = grid.map((bytes) =>
    experts.map((e, i) => solve(laws[i], e, shape, { ...limits, memory_bytes: bytes })),
  );
  const best = rows.map(bestOf);
  const bounded = (i) => rows.map((row, k) => [grid[k], row[i]]).filter(([, o]) => o.feasible);
  const lines = experts.map((e, i) => ({
    ...looks[e],
    points: bounded(i).map(([bytes, o]) => [bytes, o.loss]),
    dashed: bounded(i).map(([, o]) => outsideOf(law, shape, o.n_active, o.n_tokens, e).length > 0),
    band: (e === plan.best.n_experts ? bounded(i) : [])
      .map(([bytes, o]) => [bytes, bandOf(law, shape, o.n_active, o.n_tokens, e)])
      .filter(([, b]) => b)
      .map(([x, b]) => [x, ...b]),
  }));
  const losses = best.filter(Boolean).map((o) => o.loss);
  const least = losses.at(-1);
  const span = Math.max(...losses.filter((loss) => loss < 1.06 * least), plan.best.loss) - least || 0.01 * least;
  const at = limits.memory_bytes;
  draw(picture, {
    x: { ...inBytes, low: grid[0], high: grid.at(-1), label: "memory of weights and cache" },
    y: { low: least - 0.22 * span, high: least + 1.25 * span, label: "loss, nats per token" },
    lines,
    strips: stripsOf(best, grid, looks),
    rules: at == null ? [] : [{ x: at }],
    dots:
      at == null
        ? []
        : [
            { x: at, y: plan.best.loss, ring: true, r: 8 },
            { x: at, y: plan.best.loss, ...looks[plan.best.n_experts] },
          ],
    across: true,
    first: at == null ? grid.length - 1 : grid.findIndex((bytes) => bytes >= at),
    stops: grid.map((bytes, k) => ({
      x: bytes,
      y: least + span,
      bytes,
      dots: rows[k].filter((o) => o.feasible).map((o) => [bytes, o.loss]),
      text: [
        memoryText(bytes),
        ...rows[k].map(
          (o) =>
            `E = ${o.n_experts}: ${o.feasible ? fixed(o.loss, 4) : "does not fit"}` +
            (o === best[k] ? `, best: ${amount(o.n_active)} active` : ""),
        ),
      ].join("\n"),
    })),
    choose: (stop) => choose({ bytes: stop.bytes }),
  });
  return `${flopsText(limitsAt(limits, plan.best.n_experts).flops)} training FLOPs; click to take a memory`;
}

// The best loss that a cost of training and inference together buys; the foot says which E is the best.
export function againstCost(picture, { data, law, shape, limits, experts, loss, chips }, plan, looks, change) {
  if (limits.flops == null) return "needs a budget of FLOPs";
  const shares = spread(1 / 30, 30, POINTS + 1);
  const rows = front(data, law, shape, limits, experts, chips, shares);
  const grid = rows.map(({ flops }) => flops);
  const losses = rows.map((row) => row.loss);
  const span = losses[0] - losses.at(-1);
  const asked = loss ?? plan.best.loss;
  const { flops: budget } = limitsAt(limits, plan.best.n_experts);
  const price = ({ hours, dollars }) =>
    hours == null ? "" : `\n${duration(hours)}${dollars == null ? "" : `, $${amount(dollars)}`}`;
  draw(picture, {
    x: {
      log: true,
      low: grid[0],
      high: grid.at(-1),
      label: "FLOPs of training and inference",
      format: (v) => flopsText(v),
    },
    y: { low: losses.at(-1) - 0.15 * span, high: losses[0] + 0.05 * span, label: "loss, nats per token" },
    lines: [
      {
        ...looks[plan.best.n_experts],
        points: rows.map((row) => [row.flops, row.loss]),
        dashed: rows.map((row) => outsideOf(law, shape, row.n_active, row.n_tokens, row.n_experts).length > 0),
      },
    ],
    strips: stripsOf(rows, grid, looks),
    rules: loss == null ? [] : [{ y: loss }],
    dots: [{ x: budget, y: asked, ring: true, r: 8 }],
    across: true,
    first: grid.findIndex((flops) => flops >= budget * (1 - 1e-9)),
    stops: rows.map((row) => ({
      x: row.flops,
      y: row.loss,
      loss: row.loss,
      dots: [[row.flops, row.loss]],
      text:
        `${flopsText(row.flops)} FLOPs: loss ${fixed(row.loss, 4)}${price(row)}\n` +
        `E = ${row.n_experts}, ${amount(row.n_active)} active, ${amount(row.n_tokens)} tokens`,
    })),
    choose: (stop) => change({ target_loss: typed(+stop.loss.toPrecision(5)) }),
  });
  return "training and inference together; click to ask for a loss";
}

// The law's loss of each run against the measured one.
export function measured(picture, { law }, looks, runs) {
  if (!runs) return "drop a table of runs on the page";
  const predicted = runs.loss.map((_, i) =>
    lossOfRun(law, Object.fromEntries(law.columns.map((name) => [name, runs[name][i]]))),
  );
  const all = [...runs.loss, ...predicted];
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const room = 0.04 * (high - low || low);
  const ends = { low: low - room, high: high + room };
  const errors = predicted.map((p, i) => p / runs.loss[i] - 1);
  const order = runs.loss.map((_, i) => i).sort((a, b) => runs.loss[a] - runs.loss[b]);
  draw(picture, {
    x: { ...ends, label: "measured loss, nats per token" },
    y: { ...ends, label: "predicted loss" },
    rules: [{ from: [ends.low, ends.low], to: [ends.high, ends.high] }],
    dots: order.map((i) => ({
      x: runs.loss[i],
      y: predicted[i],
      r: 3,
      hollow: runs.held_out[i],
      ...looks[runs.n_experts[i]],
    })),
    stops: order.map((i) => ({
      x: runs.loss[i],
      y: predicted[i],
      text:
        `${runs.name[i]}\nE = ${runs.n_experts[i]}, ${amount(runs.n_active[i])} active, ${amount(runs.n_tokens[i])} tokens\n` +
        `measured ${fixed(runs.loss[i], 4)}, predicted ${fixed(predicted[i], 4)} (${errors[i] > 0 ? "+" : ""}${percent(errors[i])})`,
    })),
  });
  const mean = errors.reduce((sum, error) => sum + Math.abs(error), 0) / errors.length;
  const kept = runs.held_out.some(Boolean) ? "; hollow: held out of the fit" : "";
  return (
    `${runs.loss.length === runs.count ? runs.count : `${runs.loss.length} of ${runs.count}`} runs of ${runs.file}, ` +
    `mean relative error ${percent(mean)}${kept}`
  );
}
