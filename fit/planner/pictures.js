// The pictures of a plan. options: what was asked; plan: its answer; runs: columns, or null.

import { draw } from "./chart.js";
import { memoryOf, smallestWidth, tokensOf } from "./counts.js";
import { extrapolationOf, lawAt } from "./law.js";
import { amount, flopsText, memoryText } from "./numbers.js";
import { bestOf, largestSize, optima, solve } from "./solve.js";

const POINTS = 72; // of a curve
const NEAR = 1.25; // a run belongs to a budget within this factor of it
const LOSS_AXIS = { label: "loss, nats per token", format: (loss) => loss.toFixed(2) };

// n numbers from low to high, evenly spaced in their logarithms.
const logSpaced = (low, high) =>
  Array.from({ length: POINTS }, (_, i) => low * (high / low) ** (i / (POINTS - 1)));

// The share of the colours of each number of experts.
export function coloursOf(experts) {
  const last = Math.log(Math.max(...experts, 2));
  return Object.fromEntries(experts.map((e) => [e, Math.log(e) / last]));
}

// The optima without a limit on memory.
const withoutMemoryLimit = ({ law, shape, limits, experts }) =>
  optima(law, shape, { ...limits, memory_bytes: null }, experts).filter((one) => one.feasible);

function pointOf(law, shape, x, model, isTooLarge = false) {
  const isOutside = extrapolationOf(law, shape, model).length > 0;
  return { x, y: model.loss, isOutside, isTooLarge };
}

// The runs with about the tokens that the limits buy for their size. Each loss is moved along the law to just those
// tokens, where its distance from the curve is the run's own error.
function runsNear(runs, { law, shape, limits, experts }) {
  return runs.loss.flatMap((loss, i) => {
    const n_active = runs.n_active[i];
    const n_experts = runs.n_experts[i];
    const n_tokens = tokensOf(limits, n_active);
    const isNear = Math.abs(Math.log(runs.n_tokens[i] / n_tokens)) < Math.log(NEAR);
    if (!isNear || !experts.includes(n_experts)) return [];
    const at = lawAt(law, shape, n_experts);
    const moved = (loss * at.loss(n_active, n_tokens)) / at.loss(n_active, runs.n_tokens[i]);
    return [{ n_active, n_experts, loss: moved, kind: runs.held_out[i] ? "hollow" : "dot" }];
  });
}

// Loss against size at the plan's budget, a curve for each E; faint where memory forbids. Returns the picture's note.
export function drawSizes(picture, options, plan, colours, runs) {
  const { law, shape, limits, experts } = options;
  if (limits.flops == null) return "needs a budget of FLOPs";
  const { best } = plan;
  const near = runs ? runsNear(runs, options) : [];
  const free = withoutMemoryLimit(options);
  const shown = [...plan.optima, ...free, ...near];
  const sizes = shown.map(({ n_active }) => n_active);
  const grid = logSpaced(Math.min(...sizes) / 4, Math.max(...sizes) * 4).filter((size) => tokensOf(limits, size) >= 1);
  const lines = experts.map((n_experts) => {
    const at = lawAt(law, shape, n_experts);
    const largest = largestSize(n_experts, shape, limits);
    const points = grid.map((n_active) => {
      const n_tokens = tokensOf(limits, n_active);
      const model = { n_experts, n_active, n_tokens, loss: at.loss(n_active, n_tokens) };
      return pointOf(law, shape, n_active, model, n_active > largest);
    });
    return { n_experts, share: colours[n_experts], points };
  });
  const losses = shown.map(({ loss }) => loss);
  const least = Math.min(...losses);
  const span = Math.max(Math.min(Math.max(...losses), 1.1 * least) - least, 0.015 * least);
  const stops = grid.map((size, i) => ({
    x: size,
    losses: lines.map(({ points }) => points[i].y),
    text: [
      `${amount(size)} active, ${amount(tokensOf(limits, size))} tokens`,
      ...lines.map(({ n_experts, points }) => {
        const note = points[i].isTooLarge ? ", too large for the memory" : "";
        return `E = ${n_experts}: ${points[i].y.toFixed(4)}${note}`;
      }),
    ].join("\n"),
  }));
  const dotOf = ({ n_active, loss, n_experts, kind = "dot" }, r) =>
    ({ x: n_active, y: loss, share: colours[n_experts], r, kind });
  draw(picture, {
    x: { isLog: true, format: amount, low: grid[0], high: grid.at(-1), label: "active parameters" },
    y: { ...LOSS_AXIS, low: least - 0.12 * span, high: least + 1.5 * span },
    ...{ lines, strips: [], rule: null, stops, first: grid.findIndex((size) => size >= best.n_active) },
    dots: [
      ...near.map((run) => dotOf(run, 3)),
      ...plan.optima.map((row) => dotOf(row, 4)),
      dotOf({ ...best, kind: "ring" }, 8),
    ],
  });
  const moved = near.length ? "; runs of about as many, moved to it along the law" : "";
  return `${flopsText(limits.flops)} training FLOPs${moved}`;
}

// Memories from a part of what the best dense model takes without a limit to more than any optimum takes.
function memoriesToShow(options) {
  const { shape, limits } = options;
  const taken = withoutMemoryLimit(options).map((one) => memoryOf(shape, limits, one.d_model, one.n_experts));
  const smallest = memoryOf(shape, limits, smallestWidth(shape), 1);
  const low = Math.max(smallest, taken[0] / 8);
  const asked = limits.memory_bytes;
  return logSpaced(Math.min(low, asked ?? Infinity), Math.max(1.5 * Math.max(...taken), 1.2 * (asked ?? 0)));
}

// The stretches of memory over which one number of experts is the best.
function stripsOf(best, grid, colours) {
  const strips = [];
  best.forEach((optimum, i) => {
    if (!optimum) return;
    const to = grid[Math.min(i + 1, grid.length - 1)];
    const label = String(optimum.n_experts);
    if (strips.at(-1)?.label === label) strips.at(-1).to = to;
    else strips.push({ from: grid[i], to, share: colours[label], label });
  });
  return strips;
}

// The best loss that each amount of memory allows, a curve for each E; the foot says which E is the best. Returns the
// picture's note; choose: what a click does with a memory.
export function drawMemories(picture, options, plan, colours, choose) {
  const { law, shape, limits, experts } = options;
  if (limits.flops == null) return "needs a budget of FLOPs";
  const grid = memoriesToShow(options);
  const laws = experts.map((e) => lawAt(law, shape, e));
  const solved = grid.map((memory_bytes) =>
    experts.map((e, k) => solve(laws[k], e, shape, { ...limits, memory_bytes })),
  );
  const best = solved.map(bestOf);
  const lines = experts.map((e, k) => {
    const feasible = grid.map((bytes, i) => [bytes, solved[i][k]]).filter(([, one]) => one.feasible);
    const points = feasible.map(([bytes, one]) => pointOf(law, shape, bytes, one));
    return { share: colours[e], points };
  });
  const losses = best.filter(Boolean).map(({ loss }) => loss);
  const least = losses.at(-1);
  const worst = Math.max(...losses.filter((loss) => loss < 1.06 * least), plan.best.loss);
  const span = Math.max(worst - least, 0.001 * least);
  const asked = limits.memory_bytes;
  const stops = grid.map((bytes, i) => ({
    x: bytes,
    losses: solved[i].filter((one) => one.feasible).map(({ loss }) => loss),
    text: [
      memoryText(bytes),
      ...solved[i].map((one) => {
        const isBest = one === best[i] ? `, best: ${amount(one.n_active)} active` : "";
        return `E = ${one.n_experts}: ${one.feasible ? one.loss.toFixed(4) : "does not fit"}${isBest}`;
      }),
    ].join("\n"),
  }));
  draw(picture, {
    x: { isLog: true, format: memoryText, low: grid[0], high: grid.at(-1), label: "memory of weights and cache" },
    y: { ...LOSS_AXIS, low: least - 0.22 * span, high: least + 1.25 * span },
    ...{ lines, strips: stripsOf(best, grid, colours), rule: asked, stops },
    dots: asked == null ? [] : [{ x: asked, y: plan.best.loss, r: 8, kind: "ring" }],
    first: asked == null ? grid.length - 1 : grid.findIndex((bytes) => bytes >= asked),
    choose: (stop) => choose(stop.x),
  });
  return `${flopsText(limits.flops)} training FLOPs; click to take a memory`;
}
