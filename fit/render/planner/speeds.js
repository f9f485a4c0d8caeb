// Plans by hours: the best of the models whose speeds Python put on the page (fit/render/planner/page_speeds.py).

import { INFERENCE_FLOPS, SECONDS_OF_AN_HOUR, TRAINING_FLOPS } from "./counts.js";
import { data } from "./data.js";
import { refuse } from "./messages.js";
import { general } from "./numbers.js";
import { exceededLimit } from "./serving.js";

/** The limits that hours on chips are. Throws PlanError with the command that answers what lies off the grid.
 *  @type {(options: Options, command: string) => {hours: Hours, speeds: Speeds}} */
export function speedsIn(options, command) {
  const missing = missingIn(data.speeds, options);
  if (missing) refuse("PAGE_WITHOUT_SPEEDS", { missing, command });
  const { hours, chips } = options;
  const asked = { count: chips.count, flops: data.chips[chips.kind].flops, command };
  return { hours, speeds: { ...data.speeds, asked } };
}

// The part of the question that lies off the grid, in words; "" for nothing.
function missingIn(speeds, { law, like, typed, chips, hours, experts }) {
  if (speeds == null) return "of this law's models";
  const { kind, counts, models, hours: [least, most] } = speeds;
  const known = [...new Set(models.map(({ n_experts }) => n_experts))];
  if (law.name !== speeds.law) return `by the law ${law.name}, only by ${speeds.law}`;
  if (like) return `of models like ${like}, only of the law's own`;
  for (const name of Object.keys(typed)) return `with another ${name} than the law's`;
  if (chips.kind !== kind) return `of ${chips.kind}, only of ${kind}`;
  if (!counts.includes(chips.count)) return `of ${chips.count} x ${kind}, only of ${counts.join(", ")}`;
  if (hours == null) return "where FLOPs are the budget, only where hours are";
  if (!(hours >= least && hours <= most)) return `of ${general(hours)} hours, only of ${least} to ${most}`;
  const unknown = experts.filter((n_experts) => !known.includes(n_experts));
  return unknown.length ? `of ${unknown.join(", ")} experts, only of ${known.join(", ")}` : "";
}

// The most tokens that some of the chips train a model on, and on how many of them how fast; null for none.
function trainingOf({ hours, speeds, inference_tokens }, curves, n_active, most) {
  const { asked, mfu_unit, tokens_unit } = speeds;
  let best = null;
  for (const [count, ...steps] of curves) {
    if (count > asked.count) break;
    const rate = (count * asked.flops * mfu_unit) / (TRAINING_FLOPS * n_active); // tokens a second at one unit
    for (let i = 0; i < steps.length; i += 2) {
      const speed = steps[i + 1] * rate;
      const next = i + 2 < steps.length ? Math.exp(steps[i + 2] * tokens_unit) : Infinity; // where other speeds begin
      const inHours = SECONDS_OF_AN_HOUR * hours * speed - (inference_tokens * INFERENCE_FLOPS) / TRAINING_FLOPS;
      const n_tokens = Math.floor(Math.min(inHours, most, next));
      const isAllowed = n_tokens >= Math.max(1, Math.exp(steps[i] * tokens_unit));
      if (isAllowed && !(best?.n_tokens >= n_tokens)) best = { n_tokens, count, tokens_per_second: speed };
    }
  }
  return best;
}

// The models of the grid with n_experts, on the most tokens within the limits; `exceeded` names a limit on size.
function modelsInHours(law, n_experts, shape, limits) {
  const { models: grid, uncounted_rows } = limits.speeds;
  const found = [];
  for (const models of grid.filter((each) => each.n_experts === n_experts)) {
    models.n_active.forEach((n_active, i) => {
      const most = Math.min(models.most_tokens[i] ?? Infinity, limits.max_tokens ?? Infinity);
      const training = trainingOf(limits, models.speeds[i], n_active, most);
      if (!training) return;
      const [n_total, d_model, n_blocks] = [models.n_total[i], models.d_model[i], models.n_blocks[i]];
      const { n_tokens } = training;
      const uncounted = uncounted_rows * d_model;
      const loss = law.lossOfCounts({ n_active: n_active - uncounted, n_total: n_total - uncounted, n_tokens });
      const weights = limits.bytes_per_parameter * models.exact_parameters[i];
      const memory_bytes = weights + limits.bytes_per_kv_element * limits.kv_tokens * models.cache_elements[i];
      const model = { n_experts, n_active, n_total, d_model, n_blocks, loss, memory_bytes, ...training };
      found.push({ ...model, exceeded: exceededLimit(shape, limits, model)?.name ?? "" });
    });
  }
  return found.sort((a, b) => a.n_active - b.n_active || a.loss - b.loss);
}

// The model of the lowest loss among those within the limits on size.
function bestWithin(models) {
  return models.filter(({ exceeded }) => !exceeded).sort((a, b) => a.loss - b.loss)[0];
}

/** The best of the models with n_experts.
 *  @type {(law: LawAtExperts, n_experts: Experts, shape: Shape, limits: Limits) => Optimum} */
export function solveInHours(law, n_experts, shape, limits) {
  const models = modelsInHours(law, n_experts, shape, limits);
  const best = bestWithin(models);
  if (!best) return { n_experts, feasible: false };
  const { count, exceeded: _, ...row } = best;
  const used = count === limits.speeds.asked.count ? {} : { chips: count };
  return { feasible: true, ...row, size_bound: boundOf(best, models, limits), ...used };
}

// What keeps the best model from being larger.
function boundOf(best, models, { max_tokens }) {
  if (best.n_tokens >= Math.floor(max_tokens ?? Infinity)) return "tokens";
  const larger = models.filter(({ n_active }) => n_active > best.n_active);
  return larger.some(({ exceeded }) => exceeded === "") ? "" : (larger[0]?.exceeded ?? "");
}

const NEAR_END = 1.15; // so near the fewest tokens the best model may be a larger one, which is not there

/** Throws PlanError where a best model may lie beyond the grid. @type {(speeds: Speeds, plan: Plan) => void} */
export function refuseEndOfGrid({ tokens_per_parameter: [least, most], asked }, { optima, best }) {
  const ratioOf = ({ n_active, n_tokens }) => n_tokens / n_active;
  const isFew = Math.min(...optima.map(ratioOf)) < least * NEAR_END;
  if (!isFew && ratioOf(best) <= most) return;
  const missing = `of so ${isFew ? "few" : "many"} tokens per parameter`;
  refuse("PAGE_WITHOUT_SPEEDS", { missing, command: asked.command });
}

/** The speed of a model's training, each with its range of 80%. @type {(speeds: Speeds, row: Optimum) => object} */
export function speedOf({ factors, asked }, { n_active, n_tokens, tokens_per_second, chips: used }) {
  const count = used ?? asked.count;
  const speeds = factors[Math.min(asked.count, factors.length) - 1].map((factor) => factor * tokens_per_second);
  const mfu = speeds.map((speed) => (TRAINING_FLOPS * n_active * speed) / (count * asked.flops));
  const hours = [...speeds].reverse().map((speed) => n_tokens / speed / SECONDS_OF_AN_HOUR);
  return { tokens_per_second: speeds, mfu, hours };
}

/** Models for a curve of loss against size through the best of them: up to it and beyond it the lower convex hull over
 *  ln size. The other models lie above, and a curve of all would zigzag. Beyond the best, models may exceed a limit.
 *  @type {(law: LawAtExperts, n_experts: Experts, shape: Shape, limits: Limits) => object[]} */
export function curveInHours(law, n_experts, shape, limits) {
  const models = modelsInHours(law, n_experts, shape, limits);
  const best = bestWithin(models);
  if (!best) return lowerHull(models);
  const below = models.filter(({ exceeded, n_active }) => !exceeded && n_active < best.n_active);
  const beyond = models.filter(({ n_active }) => n_active > best.n_active);
  return [...lowerHull([...below, best]).slice(0, -1), ...lowerHull([best, ...beyond])];
}

// Of models that ascend in size, those of which none lies above the line through its neighbours.
function lowerHull(models) {
  const hull = [];
  for (const model of models) {
    while (hull.length > 1 && isAbove(hull.at(-2), hull.at(-1), model)) hull.pop();
    hull.push(model);
  }
  return hull;
}

// Whether the middle one of three models lies above the line through the others, over ln size.
function isAbove(first, middle, last) {
  const riseTo = (model) => model.loss - first.loss;
  const wayTo = (model) => Math.log(model.n_active / first.n_active);
  return riseTo(middle) * wayTo(last) > riseTo(last) * wayTo(middle);
}
