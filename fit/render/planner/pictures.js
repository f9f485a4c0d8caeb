// The pictures of a plan: loss against size, against memory and against hours.

import { drawPicture } from "./chart.js";
import { hasBudget, servingBytes, smallestWidth, tokensFor } from "./counts.js";
import { lawAtExperts, outsideRangesOf } from "./law.js";
import { amount, durationText, flopsText, memoryText } from "./numbers.js";
import { bestOf, feasibleOf, largestSize, optimaOf, solve } from "./solve.js";
import { curveInHours } from "./speeds.js";

const POINTS = 72; // of a curve
const AROUND = 30; // hours are shown up to so many times below and above the plan's
const NEAR = 1.25; // a run belongs to a budget within this factor of it
const LOSS_AXIS = { label: "loss, nats per token", format: (loss) => loss.toFixed(2) };

// Numbers from low to high, evenly spaced in their logarithms.
function logSpaced(low, high) {
  return Array.from({ length: POINTS }, (_, i) => low * (high / low) ** (i / (POINTS - 1)));
}

// The budget in words.
function budgetText({ limits, hours, chips }) {
  if (limits.speeds) return `${durationText(hours)} on ${amount(chips.count)} × ${chips.kind}, at modelled speeds`;
  return `${flopsText(limits.flops)} training FLOPs`;
}

/** The share of the colours of each number of experts. @type {(experts: Experts[]) => Object<Experts, number>} */
export function coloursOf(experts) {
  const last = Math.log(Math.max(...experts, 2));
  return Object.fromEntries(experts.map((n_experts) => [n_experts, Math.log(n_experts) / last]));
}

function optimaWithoutMemory({ law, shape, limits, experts }) {
  return feasibleOf(optimaOf(law, shape, { ...limits, memory_bytes: null }, experts));
}

function pointOf(law, shape, x, model, isTooLarge = false) {
  const isOutside = outsideRangesOf(law, shape, model).length > 0;
  return { x, y: model.loss, isOutside, isTooLarge };
}

// The runs with about the tokens that the limits buy for their size. Each loss is moved along the law to just those
// tokens, where its distance from the curve is the run's own error.
function runsNear(runs, { law, shape, limits, experts }) {
  const near = [];
  runs.loss.forEach((loss, i) => {
    const n_active = runs.n_active[i];
    const n_experts = runs.n_experts[i];
    const n_tokens = tokensFor(limits, n_active);
    const isNear = Math.abs(Math.log(runs.n_tokens[i] / n_tokens)) < Math.log(NEAR);
    if (!isNear || !experts.includes(n_experts)) return;
    const lawAt = lawAtExperts(law, shape, n_experts);
    const moved = (loss * lawAt.loss(n_active, n_tokens)) / lawAt.loss(n_active, runs.n_tokens[i]);
    near.push({ n_active, n_experts, loss: moved, kind: runs.held_out[i] ? "hollow" : "dot" });
  });
  return near;
}

// A curve of loss over sizes at each number of experts; points too large for the memory are marked.
function curvesOverSizes(sizes, { law, shape, limits, experts }, colours) {
  return experts.map((n_experts) => {
    const lawAt = lawAtExperts(law, shape, n_experts);
    if (limits.speeds) {
      const curve = curveInHours(lawAt, n_experts, shape, limits);
      const points = curve.map((model) => pointOf(law, shape, model.n_active, model, model.exceeded !== ""));
      return { n_experts, share: colours[n_experts], points };
    }
    const largest = largestSize(n_experts, shape, limits).size;
    const points = sizes.map((n_active) => {
      const n_tokens = tokensFor(limits, n_active);
      const model = { n_experts, n_active, n_tokens, loss: lawAt.loss(n_active, n_tokens) };
      return pointOf(law, shape, n_active, model, n_active > largest);
    });
    return { n_experts, share: colours[n_experts], points };
  });
}

/** Draws loss against size at the plan's budget, a curve for each E, and returns the picture's note.
 *  @type {(picture: Picture, options: Options, plan: Plan, colours: object, runs: ?object) => string} */
export function drawSizes(picture, options, plan, colours, runs) {
  const { limits } = options;
  if (!hasBudget(limits)) return "needs a budget of FLOPs or hours";
  const near = runs && !limits.speeds ? runsNear(runs, options) : [];
  const shown = [...plan.optima, ...optimaWithoutMemory(options), ...near];
  const shownSizes = shown.map(({ n_active }) => n_active);
  const range = logSpaced(Math.min(...shownSizes) / 4, Math.max(...shownSizes) * 4);
  const sizes = range.filter((size) => limits.speeds || tokensFor(limits, size) >= 1);
  const lines = curvesOverSizes(sizes, options, colours);
  const losses = shown.map(({ loss }) => loss);
  const least = Math.min(...losses);
  const span = Math.max(Math.min(Math.max(...losses), 1.1 * least) - least, 0.015 * least);
  function dotOf({ n_active, loss, n_experts }, r, kind) {
    const text = `E = ${n_experts}, ${amount(n_active)} active: loss ${loss.toFixed(4)}`;
    return { x: n_active, y: loss, share: colours[n_experts], r, kind, text };
  }
  const runDots = near.map((run) => dotOf(run, 3, run.kind));
  const optimaDots = plan.optima.map((row) => dotOf(row, 4, "dot"));
  drawPicture(picture, {
    x: { label: "active parameters", format: amount, low: sizes[0], high: sizes.at(-1) },
    y: { ...LOSS_AXIS, low: least - 0.12 * span, high: least + 1.5 * span },
    lines,
    dots: [...runDots, ...optimaDots, dotOf(plan.best, 8, "ring")],
    strips: [],
    rule: null,
  });
  const moved = near.length ? "; runs of about as many, moved to it along the law" : "";
  return `${budgetText(options)}${moved}`;
}

// Memories from a part of what the best dense model takes without a limit to more than any optimum takes.
function memoriesToShow(options) {
  const { shape, limits } = options;
  const optima = optimaWithoutMemory(options);
  const taken = optima.map(({ d_model, n_experts }) => servingBytes(shape, limits, d_model, n_experts));
  const smallest = servingBytes(shape, limits, smallestWidth(shape), 1);
  const low = Math.max(smallest, taken[0] / 8);
  const limit = limits.memory_bytes;
  return logSpaced(Math.min(low, limit ?? Infinity), Math.max(1.5 * Math.max(...taken), 1.2 * (limit ?? 0)));
}

// The stretches of memory over which one number of experts is the best.
function stripsOf(best, memories, colours) {
  const strips = [];
  best.forEach((optimum, i) => {
    if (!optimum) return;
    const to = memories[Math.min(i + 1, memories.length - 1)];
    const label = String(optimum.n_experts);
    if (strips.at(-1)?.label === label) strips.at(-1).to = to;
    else strips.push({ from: memories[i], to, share: colours[label], label });
  });
  return strips;
}

/** Draws the best loss that each memory allows, a curve for each E, and returns the picture's note. The foot names the
 *  best E.
 *  @type {(picture: Picture, options: Options, plan: Plan, colours: object) => string} */
export function drawMemories(picture, options, plan, colours) {
  const { law, shape, limits, experts } = options;
  if (!hasBudget(limits)) return "needs a budget of FLOPs or hours";
  const memories = memoriesToShow(options);
  const laws = experts.map((n_experts) => lawAtExperts(law, shape, n_experts));
  const solved = memories.map((memory_bytes) =>
    experts.map((n_experts, k) => solve(laws[k], n_experts, shape, { ...limits, memory_bytes })),
  );
  const best = solved.map(bestOf);
  const lines = experts.map((n_experts, k) => {
    const withMemory = memories.map((bytes, i) => ({ bytes, optimum: solved[i][k] }));
    const feasible = withMemory.filter(({ optimum }) => optimum.feasible);
    const points = feasible.map(({ bytes, optimum }) => pointOf(law, shape, bytes, optimum));
    return { share: colours[n_experts], points };
  });
  const losses = best.filter((optimum) => optimum != null).map(({ loss }) => loss);
  const least = losses.at(-1);
  const worst = Math.max(...losses.filter((loss) => loss < 1.06 * least), plan.best.loss);
  const span = Math.max(worst - least, 0.001 * least);
  const limit = limits.memory_bytes;
  drawPicture(picture, {
    x: { label: "memory of weights and cache", format: memoryText, low: memories[0], high: memories.at(-1) },
    y: { ...LOSS_AXIS, low: least - 0.22 * span, high: least + 1.25 * span },
    lines,
    dots: limit == null ? [] : [{ x: limit, y: plan.best.loss, r: 8, kind: "ring", text: memoryText(limit) }],
    strips: stripsOf(best, memories, colours),
    rule: limit,
  });
  return budgetText(options);
}

/** Draws the least loss under hours around the plan's, a curve for each E, and returns the picture's note.
 *  @type {(picture: Picture, options: Options, plan: Plan, colours: object, hours: Hours) => string} */
export function drawHours(picture, options, plan, colours, hours) {
  const { law, shape, experts, chips, limits } = options;
  const [least, most] = limits.speeds?.hours ?? [0, Infinity];
  const shares = logSpaced(1 / AROUND, AROUND).filter((share) => share * hours >= least && share * hours <= most);
  const lines = experts.map((n_experts) => {
    const lawAt = lawAtExperts(law, shape, n_experts);
    const solved = shares.map((share) => {
      const optimum = solve(lawAt, n_experts, shape, { ...limits, flops: share * limits.flops, hours: share * hours });
      return { share, optimum };
    });
    const feasible = solved.filter(({ optimum }) => optimum.feasible);
    const points = feasible.map(({ share, optimum }) => pointOf(law, shape, share * hours, optimum));
    return { share: colours[n_experts], points };
  });
  const losses = lines.flatMap(({ points }) => points.map(({ y }) => y));
  const lowest = Math.min(...losses);
  const highest = Math.min(Math.max(...losses), plan.best.loss + 2 * (plan.best.loss - lowest));
  const text = `E = ${plan.best.n_experts}: loss ${plan.best.loss.toFixed(4)}`;
  drawPicture(picture, {
    x: { label: "hours", format: durationText, low: hours * shares[0], high: hours * shares.at(-1) },
    y: { ...LOSS_AXIS, low: lowest - 0.05 * (highest - lowest), high: highest },
    lines,
    dots: [{ x: hours, y: plan.best.loss, r: 8, kind: "ring", text }],
    strips: [],
    rule: null,
  });
  const speed = limits.speeds ? "each model at its modelled speed" : "at one MFU";
  return `on ${amount(chips.count)} × ${chips.kind}, ${speed}`;
}
