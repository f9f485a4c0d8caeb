// Plans by the clock: how fast chips train models of every size, and what a plan says of it (fit/planning/by_time.py).

import { SECONDS_OF_AN_HOUR, curveOf, largestTrained, speedAt } from "./clock.js";
import { INFERENCE_FLOPS, TRAINING_FLOPS, hasEnoughExperts, tokensFor, trainingFlops } from "./counts.js";
import { gridModel, routedExpertsOnGrid } from "./grid.js";
import { fastestLayout } from "./mesh.js";
import { refuse, say } from "./messages.js";
import { recipeOf } from "./recipe.js";
import { bestOf, optimaOf } from "./solve.js";

const MOST_KEPT = 100_000; // layouts
const layouts = new Map(); // those found already: sliders ask for the same models again and again

// The layout of least time, found once for each model, recipe and chips.
function layoutOf(data, chips, model, recipe) {
  const key = [chips.kind, chips.count, ...Object.values(model), ...Object.values(recipe)].join();
  if (!layouts.has(key)) {
    if (layouts.size >= MOST_KEPT) layouts.clear();
    layouts.set(key, fastestLayout(data, chips, model, recipe));
  }
  return layouts.get(key);
}

// The model of a width with its speed where FLOPs are the budget: on the tokens that they leave.
function timedByFlops(data, question, width, n_experts) {
  const { law, chips, limits, building } = question;
  const tokensAtSize = ({ n_active }) => {
    if (limits.flops == null) return data.clock.typical * n_active;
    return Math.max(limits.flops / (TRAINING_FLOPS * n_active), 1);
  };
  const firstRecipe = (model) => recipeOf(data, law, model, tokensAtSize(model), building.isFamily);
  const model = gridModel(data, question, width, n_experts, firstRecipe);
  const { n_active } = model;
  const left = tokensFor(limits, n_active, n_experts);
  const n_tokens = Number.isFinite(left) ? left : data.clock.typical * n_active; // nothing may bound them
  const layout = layoutOf(data, chips, model, recipeOf(data, law, model, Math.max(1, n_tokens), building.isFamily));
  return layout && { n_active, tokens_per_second: layout.tokens_per_second };
}

// The model of a width on the grid with its speed; null where the chips cannot train it. n_experts: of the trainer.
function timedModel(data, question, width, n_experts) {
  if (question.hours == null) return timedByFlops(data, question, width, n_experts);
  const { law, chips, limits, building } = question;
  const seconds = SECONDS_OF_AN_HOUR * question.hours;
  const rate = data.cost.mfu * chips.count * data.chips[chips.kind].flops;
  const tokensAtSize = ({ n_active }) => Math.max((seconds * rate) / (TRAINING_FLOPS * n_active), 1);
  const firstRecipe = (model) => recipeOf(data, law, model, tokensAtSize(model), building.isFamily);
  const model = gridModel(data, question, width, n_experts, firstRecipe);
  const inference = (INFERENCE_FLOPS / TRAINING_FLOPS) * limits.inference_tokens;
  let tokens_per_second = rate / (TRAINING_FLOPS * model.n_active);
  let batches = "";
  // the batch depends on the tokens, which depend on the speed
  for (let round = 0; round < 2; round++) {
    const left = Math.min(seconds * tokens_per_second - inference, limits.max_tokens ?? Infinity);
    const recipe = recipeOf(data, law, model, Math.max(1, left), building.isFamily);
    const previous = batches;
    batches = recipe.batches.join();
    if (batches === previous) break;
    const layout = layoutOf(data, chips, model, recipe);
    if (layout == null) return null;
    tokens_per_second = layout.tokens_per_second;
  }
  return { n_active: model.n_active, tokens_per_second };
}

// The curve through all models of n_experts that the chips train; null where they train none.
function timedCurve(data, question, n_experts) {
  if (!hasEnoughExperts(question.shape, n_experts)) return null;
  const routed = routedExpertsOnGrid(question.shape, n_experts);
  const timed = (width) => timedModel(data, question, width, routed);
  const models = data.grid.widths.map(timed);
  const trained = models.filter((model) => model != null);
  // where the widest is not trained; the mesh of a narrower one may not divide
  const isBounded = models.at(-1) == null;
  return trained.length ? curveOf(trained, isBounded) : null;
}

/** The speeds of models of a shape with these numbers of experts: a clock without hours where FLOPs are the budget.
 *  @type {(data: Data, question: Timing, experts: Experts[]) => Clock} */
export function speedsOf(data, question, experts) {
  const curves = new Map();
  const untrainable = [];
  for (const n_experts of new Set(experts)) {
    const curve = timedCurve(data, question, n_experts);
    if (curve) curves.set(n_experts, curve);
    else untrainable.push(n_experts);
  }
  return { hours: question.hours, curves, untrainable };
}

/** The clock of models of a shape, with these numbers of experts. Throws PlanError where the chips train none.
 *  @type {(data: Data, question: Timing, experts: Experts[]) => Clock} */
export function clockOf(data, question, experts) {
  const compared = question.law.knows_dense ? [...experts, 1] : experts; // what the best is compared with
  const clock = speedsOf(data, question, compared);
  if (!clock.curves.size) refuse("NOTHING_TIMED", question.chips);
  return clock;
}

// [10th percentile, 1, 90th percentile] of a speed over what is modelled, or of the ratio of two speeds.
function speedFactors(data, { kind, count }, isRatio = false) {
  const { within_source, z80 } = data.calibration;
  const { between_sources, between_sources_of_one } = data.chips[kind];
  const between = count === 1 ? between_sources_of_one : between_sources;
  const spread = isRatio ? Math.SQRT2 * within_source : Math.hypot(between, within_source);
  const factor = Math.exp(z80 * spread);
  return [1 / factor, 1, factor];
}

/** The speed of a model's training, each with its range of 80%; null where the chips train no such model.
 *  @type {(data: Data, chips: Chips, clock: Clock, model: Optimum) => ?Speed} */
export function speedOf(data, chips, clock, { n_experts, n_active, n_tokens }) {
  if (!clock.curves.size || clock.untrainable.includes(n_experts)) return null;
  const modelled = speedAt(clock, n_experts, n_active);
  const tokens_per_second = speedFactors(data, chips).map((factor) => modelled * factor);
  const peak = chips.count * data.chips[chips.kind].flops;
  const mfu = tokens_per_second.map((speed) => trainingFlops({ n_active, n_tokens: speed }) / peak);
  const hours = [...tokens_per_second].reverse().map((speed) => n_tokens / speed / SECONDS_OF_AN_HOUR);
  return { tokens_per_second, mfu, hours };
}

/** What as many FLOPs as the best model by the clock takes would choose of these numbers of experts.
 *  @type {(data: Data, law: Law, shape: Shape, limits: Limits, best: Optimum, experts: Experts[]) => object} */
export function againstFlops(data, law, shape, limits, best, experts) {
  const { clock, chips, inference_tokens } = limits;
  const flops = trainingFlops(best) + INFERENCE_FLOPS * best.n_active * inference_tokens;
  const by_flops = bestOf(optimaOf(law, shape, { ...limits, flops, clock: null }, experts)).n_experts;
  return comparisonOf(data, chips, clock, by_flops, best);
}

// The best numbers of experts by FLOPs and by the clock beside each other. best: the best model by the clock.
function comparisonOf(data, chips, clock, by_flops, best) {
  const largest = largestTrained(clock, by_flops);
  const n_active = Math.min(best.n_active, largest);
  const middle = speedAt(clock, by_flops, n_active) / speedAt(clock, best.n_experts, n_active);
  const ratio = speedFactors(data, chips, true).map((factor) => middle * factor);
  const comparison = { hours: clock.hours, label: data.chips[chips.kind].label, by_flops, by_time: best.n_experts };
  const bound = largest < best.n_active ? { largest } : {};
  return { ...comparison, n_active, ...bound, ratio };
}

/** What hours would choose in place of FLOPs: those that the best model by FLOPs takes, with what it serves. Returns the
 *  comparison and the clock of these hours; null for both where the speed of the best model is not modelled.
 *  @type {(data: Data, question: Timing, best: object, experts: Experts[]) => object} */
export function againstHours(data, question, best, experts) {
  if (!best.speed) return { comparison: null, clock: null };
  const { law, shape, limits } = question;
  const tokens = best.n_tokens + (INFERENCE_FLOPS / TRAINING_FLOPS) * limits.inference_tokens;
  const hours = tokens / best.speed.tokens_per_second[1] / SECONDS_OF_AN_HOUR;
  const clock = clockOf(data, { ...question, hours }, experts);
  if (clock.untrainable.includes(best.n_experts)) return { comparison: null, clock };
  const byHours = bestOf(optimaOf(law, shape, { ...limits, flops: null, clock }, experts));
  return { comparison: comparisonOf(data, question.chips, clock, best.n_experts, byHours), clock };
}

/** The sentence on what FLOPs and hours choose, where they differ; else none.
 *  @type {(comparison: ?object) => string[]} */
export function clockSentences(comparison) {
  if (!comparison || comparison.by_flops === comparison.by_time) return [];
  if (comparison.largest != null) return [say("CLOCK_DIFFERS_BY_SIZE", comparison)];
  const [low, ratio, high] = comparison.ratio;
  return [say("CLOCK_DIFFERS", { ...comparison, ratio, ends: [low, high] })];
}
