// The pictures of a plan: loss against size, against memory and against hours.

import { colourOf, drawPicture, makePicture } from "./chart.js";
import { flopsPerHour } from "./cost.js";
import { SECONDS_OF_AN_HOUR, hasBudget, modelOfWidth, smallestModel, tokensFor, widthOf } from "./counts.js";
import { byId, element } from "./elements.js";
import { lawAtExperts, outsideRangesOf } from "./law.js";
import { PlanError, withErrors } from "./messages.js";
import { amount, durationText, flopsText, general, memoryText } from "./numbers.js";
import { exceededLimit } from "./serving.js";
import { feasibleOf, optimaOf, solve, trained } from "./solve.js";
import { curveInHours } from "./speeds.js";

const POINTS = 72; // of a curve
const AROUND = 30; // hours are shown from the plan's over this to the plan's times this
const NEAR = 1.25; // a run belongs to a budget within this factor of it
const LOSS_AXIS = { label: "loss, nats per token", format: (loss) => general(loss, 4) };
const PICTURES = [
  { picture: makePicture("Loss against size"), specOf: sizesSpec },
  { picture: makePicture("Loss against memory"), specOf: memoriesSpec },
  { picture: makePicture("Loss against hours"), specOf: hoursSpec },
];
byId("pictures").append(...PICTURES.map(({ picture }) => picture.figure));

/** Draws the pictures; yields after each. runs: columns of the law's runs.
 *  @type {(answer: Answer, runs: ?object) => Generator} */
export function* showPictures({ options, plan }, runs) {
  const last = Math.log(Math.max(...options.law.experts, ...options.experts, 2));
  const shareOf = (n_experts) => Math.log(n_experts) / last; // of the colours
  const legend = options.experts.map((n_experts) => {
    return element("li", { style: `border-color:${colourOf(shareOf(n_experts))}` }, `E = ${n_experts}`);
  });
  byId("legend").replaceChildren(...legend);
  for (const { picture, specOf } of PICTURES) {
    picture.figure.hidden = specOf === hoursSpec && !(options.chips && hasBudget(options.limits));
    if (!picture.figure.hidden) showPicture(picture, () => specOf(options, plan, shareOf, runs));
    yield;
  }
}

// Draws a picture with its note; the note of a picture that cannot be drawn says why.
function showPicture(picture, specOf) {
  picture.drawing.replaceChildren();
  withErrors(() => drawPicture(picture, specOf()), (sentence) => (picture.note.textContent = sentence));
  picture.drawing.toggleAttribute("hidden", !picture.drawing.hasChildNodes());
}

// Numbers from low to high, evenly spaced in their logarithms.
function logSpaced(low, high) {
  return Array.from({ length: POINTS }, (_, i) => low * (high / low) ** (i / (POINTS - 1)));
}

// The budget in words.
function budgetText({ limits, hours, chips }) {
  if (limits.speeds) return `${durationText(hours)} on ${amount(chips.count)} × ${chips.kind}, at modelled speeds`;
  return `${flopsText(limits.flops)} training FLOPs`;
}

function optimaWithoutMemory({ law, shape, limits, experts }) {
  return feasibleOf(optimaOf(law, shape, { ...limits, memory_bytes: null }, experts));
}

// A curve for each number of experts. pointsOf: its points of {x, model, isTooLarge}.
function linesOf({ law, shape, experts }, shareOf, pointsOf) {
  return experts.map((n_experts) => {
    const points = pointsOf(n_experts, lawAtExperts(law, shape, n_experts)).map(({ x, model, isTooLarge = false }) => {
      return { x, y: model.loss, isOutside: outsideRangesOf(law, shape, model).length > 0, isTooLarge };
    });
    return { share: shareOf(n_experts), points };
  });
}

// The model of a size, on the training tokens that the budget buys it.
function trainedOfSize(lawAt, n_active, n_experts, { shape, limits }) {
  return trained(lawAt, limits, modelOfWidth(shape, limits, widthOf(shape, n_active, n_experts), n_experts));
}

function ring(x, { n_experts, loss }) {
  return { x, y: loss, r: 8, kind: "ring", text: `E = ${n_experts}: loss ${loss.toFixed(4)}` };
}

// The runs with about the tokens that the limits buy for their size. Each loss is moved along the law to just those
// tokens, where its distance from the curve is the run's own error.
function runsNear(runs, options) {
  const { law, shape, limits, experts } = options;
  const near = [];
  runs.loss.forEach((loss, i) => {
    const n_active = runs.n_active[i];
    const n_experts = runs.n_experts[i];
    const n_tokens = tokensFor(limits, n_active);
    const isNear = Math.abs(Math.log(runs.n_tokens[i] / n_tokens)) < Math.log(NEAR);
    if (!isNear || !experts.includes(n_experts)) return;
    const lawAt = lawAtExperts(law, shape, n_experts);
    const model = trainedOfSize(lawAt, n_active, n_experts, options);
    const moved = (loss * model.loss) / lawAt.loss(model, runs.n_tokens[i]);
    near.push({ n_active, n_experts, loss: moved, kind: runs.held_out[i] ? "hollow" : "dot" });
  });
  return near;
}

// Loss against size at the plan's budget; points too large for the memory are marked.
function sizesSpec(options, plan, shareOf, runs) {
  const { shape, limits } = options;
  if (!hasBudget(limits)) throw new PlanError("needs a budget of FLOPs or hours");
  const near = runs && !limits.speeds ? runsNear(runs, options) : [];
  const shown = [...plan.optima, ...optimaWithoutMemory(options), ...near];
  const shownSizes = shown.map(({ n_active }) => n_active);
  const range = logSpaced(Math.min(...shownSizes) / 4, Math.max(...shownSizes) * 4);
  const sizes = range.filter((size) => limits.speeds || tokensFor(limits, size) >= 1);
  const lines = linesOf(options, shareOf, (n_experts, lawAt) => {
    const models = limits.speeds
      ? curveInHours(lawAt, n_experts, shape, limits)
      : sizes.map((n_active) => trainedOfSize(lawAt, n_active, n_experts, options));
    return models.map((model) => {
      return { x: model.n_active, model, isTooLarge: exceededLimit(shape, limits, model) != null };
    });
  });
  function dotOf({ n_active, loss, n_experts }, r, kind) {
    const text = `E = ${n_experts}, ${amount(n_active)} active: loss ${loss.toFixed(4)}`;
    return { x: n_active, y: loss, share: shareOf(n_experts), r, kind, text };
  }
  const dots = [...near.map((run) => dotOf(run, 3, run.kind)), ...plan.optima.map((row) => dotOf(row, 4, "dot"))];
  const losses = shown.map(({ loss }) => loss);
  const least = Math.min(...losses);
  const span = Math.max(Math.min(Math.max(...losses), 1.1 * least) - least, 0.015 * least);
  const moved = near.length ? "; runs of about as many, moved to it along the law" : "";
  return {
    x: { label: "active parameters", format: amount, low: sizes[0], high: sizes.at(-1) },
    y: { ...LOSS_AXIS, low: least - 0.12 * span, high: least + 1.5 * span },
    lines,
    dots: [...dots, ring(plan.best.n_active, plan.best)],
    note: `${budgetText(options)}${moved}`,
  };
}

// The least loss at each x, its axes, and the plan's ring at its own x. limitsAt: the limits at an x.
function specAlong(range, at, limitsAt, xAxis, options, plan, shareOf) {
  const xs = [...range, at].sort((a, b) => a - b);
  const lines = linesOf(options, shareOf, (n_experts, lawAt) => {
    const optima = xs.map((x) => ({ x, model: solve(lawAt, n_experts, options.shape, limitsAt(x)) }));
    return optima.filter(({ model }) => model.feasible);
  });
  const losses = lines.flatMap(({ points }) => points.map(({ y }) => y));
  const least = Math.min(...losses);
  const high = Math.min(Math.max(...losses), Math.max(1.06 * least, 3 * plan.best.loss - 2 * least));
  const x = { ...xAxis, low: xs[0], high: xs.at(-1) };
  return { x, y: { ...LOSS_AXIS, low: least - 0.08 * (high - least), high }, lines, dots: [ring(at, plan.best)] };
}

// Memories from a part of what the best dense model takes without a limit to more than any optimum takes.
function memoriesToShow(options) {
  const { shape, limits } = options;
  const optima = optimaWithoutMemory(options);
  const taken = optima.map(({ memory_bytes }) => memory_bytes);
  const low = Math.max(smallestModel(shape, limits, 1).memory_bytes, taken[0] / 8);
  const limit = limits.memory_bytes;
  return logSpaced(Math.min(low, limit ?? Infinity), Math.max(1.5 * Math.max(...taken), 1.2 * (limit ?? 0)));
}

// The best loss that each memory allows.
function memoriesSpec(options, plan, shareOf) {
  const { limits } = options;
  if (!hasBudget(limits)) throw new PlanError("needs a budget of FLOPs or hours");
  const limitsAt = (memory_bytes) => ({ ...limits, memory_bytes });
  const xAxis = { label: "memory of weights and cache", format: memoryText };
  const at = limits.memory_bytes ?? plan.best.memory_bytes;
  const spec = specAlong(memoriesToShow(options), at, limitsAt, xAxis, options, plan, shareOf);
  return { ...spec, rule: limits.memory_bytes, note: budgetText(options) };
}

// A time, also below a second.
function timeText(hours) {
  const seconds = SECONDS_OF_AN_HOUR * hours;
  return seconds < 1 ? `${general(seconds, 2)} s` : durationText(hours);
}

// The least loss under hours around the plan's.
function hoursSpec(options, plan, shareOf) {
  const { chips, limits } = options;
  const hours = limits.speeds ? options.hours : limits.flops / flopsPerHour(chips);
  const [least, most] = limits.speeds?.hours ?? [0, Infinity];
  const shown = logSpaced(hours / AROUND, hours * AROUND).filter((x) => x >= least && x <= most);
  const limitsAt = (x) => ({ ...limits, flops: (x / hours) * limits.flops, hours: x });
  const spec = specAlong(shown, hours, limitsAt, { label: "time", format: timeText }, options, plan, shareOf);
  const speed = limits.speeds ? "each model at its modelled speed" : "at one MFU";
  return { ...spec, note: `on ${amount(chips.count)} × ${chips.kind}, ${speed}` };
}
