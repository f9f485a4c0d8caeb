// The model of the least loss at E experts under limits: N active parameters on D training tokens, both real numbers.

import { hasBudget, hasEnoughExperts, modelOfWidth, sizeFor, smallestModel, tokensFor, widthOf } from "./counts.js";
import { falls, lawAtExperts } from "./law.js";
import { PlanError, infeasibleReason, refuse } from "./messages.js";
import { exceededLimit, sizeLimits } from "./serving.js";
import { solveInHours } from "./speeds.js";

// Where f changes sign between low and high, to the last bit; NaN where the signs do not differ.
function rootOf(f, low, high) {
  const atLow = f(low);
  const atHigh = f(high);
  if (!(Math.sign(atLow) * Math.sign(atHigh) <= 0)) return NaN;
  const isDecreasing = atLow > atHigh;
  for (;;) {
    const middle = (low + high) / 2;
    if (middle === low || middle === high || Number.isNaN(middle)) return middle;
    if (f(middle) > 0 === isDecreasing) low = middle;
    else high = middle;
  }
}

// Throws the command line's sentence where the law has no optimum at one of these numbers of experts.
function refuseWithoutOptimum(laws, experts) {
  const at = laws.findIndex((law) => !falls(law));
  if (at < 0) return;
  const mu = Math.max(...laws.map(({ exponents }) => exponents[0]));
  const nu = Math.max(...laws.map(({ exponents }) => exponents[1]));
  refuse("NO_OPTIMUM", { at: experts[at], mu, nu });
}

// Throws the command line's sentence where nothing bounds the plan.
function refuseUnbounded(shape, limits) {
  if (hasBudget(limits)) return;
  if (!sizeLimits(shape, limits).length || limits.max_tokens == null) refuse("UNBOUNDED");
  if (limits.inference_tokens > 0) refuse("NO_BUDGET_TO_SHARE");
}

const BELOW_SMALLEST = 1e-9; // a limit may hold the smallest model exactly, and rounding must not put it outside

/** The largest width within memory and speed of serving, and what bounds it: infinite without, NaN where the smallest
 *  model exceeds them.
 *  @type {(n_experts: Experts, shape: Shape, limits: Limits) => Largest} */
export function largestWidth(n_experts, shape, limits) {
  const low = Math.log(smallestModel(shape, limits, n_experts).d_model) - BELOW_SMALLEST;
  let largest = { width: Infinity, bound: "" };
  for (const { name, most, needed } of sizeLimits(shape, limits)) {
    const excess = (logWidth) => Math.log(needed(modelOfWidth(shape, limits, Math.exp(logWidth), n_experts)) / most);
    let high = low + 1;
    while (excess(high) < 0) high += 1;
    const width = Math.exp(rootOf(excess, low, high));
    if (!(width > largest.width)) largest = { width, bound: name };
  }
  return largest;
}

const GRID = 20;
const REFINEMENTS = 8; // each to a tenth of the interval before

// Where f, which falls and then rises, is least between two ends: on a grid that is refined around its best point.
function minimumOf(f, from, to) {
  let low = from;
  let high = to;
  for (let step = 0; step < REFINEMENTS; step++) {
    const points = Array.from({ length: GRID + 1 }, (_, i) => low + (i / GRID) * (high - low));
    const values = points.map(f);
    const best = values.indexOf(Math.min(...values));
    low = points[Math.max(best - 1, 0)];
    high = points[Math.min(best + 1, GRID)];
  }
  return (low + high) / 2;
}

const EDGE = 1e-6; // widths so close to an end of the search are that end

/** A model on the training tokens that the limits leave it, and its loss.
 *  @type {(law: LawAtExperts, limits: Limits, model: Model) => Trained} */
export function trained(law, limits, model) {
  const n_tokens = tokensFor(limits, model.n_active);
  return { ...model, n_tokens, loss: law.loss(model, n_tokens) };
}

// The width of the largest model that can be trained on so many tokens.
function widthFor(n_tokens, n_experts, shape, limits) {
  if (!hasBudget(limits) || n_tokens == null) return Infinity;
  return widthOf(shape, sizeFor(limits, n_tokens), n_experts);
}

/** The optimum at a number of experts. largest: what largestWidth gives, if known.
 *  @type {(law: LawAtExperts, n_experts: Experts, shape: Shape, limits: Limits, largest?: Largest) => Optimum} */
export function solve(law, n_experts, shape, limits, largest = largestWidth(n_experts, shape, limits)) {
  if (limits.speeds) return solveInHours(law, n_experts, shape, limits);
  const smallest = smallestModel(shape, limits, n_experts);
  const isPossible = tokensFor(limits, smallest.n_active) >= 1 && hasEnoughExperts(shape, n_experts);
  if (!isPossible || exceededLimit(shape, limits, smallest)) return { n_experts, feasible: false };
  const modelAt = (width) => trained(law, limits, modelOfWidth(shape, limits, width, n_experts));
  const withToken = widthFor(1, n_experts, shape, limits);
  const top = Math.max(Math.min(largest.width, withToken), smallest.d_model);
  const lossAt = (logWidth) => modelAt(Math.exp(logWidth)).loss;
  const width = Math.exp(minimumOf(lossAt, Math.log(smallest.d_model), Math.log(top)));
  const ends = [
    [smallest.d_model, "smallest"],
    [largest.width, largest.bound],
    [withToken, "token"],
    [widthFor(limits.max_tokens, n_experts, shape, limits), "tokens"],
    [width, ""],
  ];
  const [d_model, size_bound] = ends.find(([end]) => Math.abs(Math.log(width / end)) < EDGE);
  if (size_bound === "token") refuse("RISES", { at: n_experts });
  return { feasible: true, ...modelAt(d_model), size_bound };
}

/** The feasible ones of these optima. @type {(solved: Optimum[]) => Optimum[]} */
export function feasibleOf(solved) {
  return solved.filter(({ feasible }) => feasible);
}

/** The optimum at each number of experts; throws the command line's sentence where none is feasible.
 *  @type {(law: Law, shape: Shape, limits: Limits, experts: Experts[]) => Optimum[]} */
export function optimaOf(law, shape, limits, experts) {
  const laws = experts.map((n_experts) => lawAtExperts(law, shape, n_experts));
  refuseUnbounded(shape, limits);
  refuseWithoutOptimum(laws, experts);
  const solved = experts.map((n_experts, i) => solve(laws[i], n_experts, shape, limits));
  if (!feasibleOf(solved).length) throw new PlanError(infeasibleReason(shape, limits, experts));
  return solved;
}

/** The FLOPs from `least` to `most` at which the best model with n_experts reaches the loss `goal`; null if `most` is
 *  not enough.
 * @type {(law: Law, n_experts: Experts, shape: Shape, limits: Limits, goal: Nats, least: Flops, most: Flops) => ?Flops}
 */
export function leastFlops(law, n_experts, shape, limits, goal, least, most) {
  const lawAt = lawAtExperts(law, shape, n_experts);
  const largest = largestWidth(n_experts, shape, limits);
  function excess(logFlops) {
    const best = solve(lawAt, n_experts, shape, { ...limits, flops: Math.exp(logFlops) }, largest);
    return best.feasible ? best.loss - goal : Infinity;
  }
  if (excess(Math.log(least)) <= 0) return least;
  if (excess(Math.log(most)) > 0) return null;
  return Math.exp(rootOf(excess, Math.log(least), Math.log(most)));
}
