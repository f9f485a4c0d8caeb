// The model of the least loss at E experts under limits: N active parameters on D training tokens, both real numbers.

import { activeParameters, hasBudget, hasEnoughExperts, sizeFor, smallestWidth } from "./counts.js";
import { tokensFor, totalParameters, widthOf } from "./counts.js";
import { falls, lawAtExperts } from "./law.js";
import { PlanError, infeasibleReason, refuse } from "./messages.js";
import { sizeLimits } from "./serving.js";
import { solveInHours } from "./speeds.js";

// Where f changes sign between low and high, to the last bit; NaN where the signs do not differ.
function rootOf(f, low, high) {
  const atLow = f(low);
  const atHigh = f(high);
  if (!(Math.sign(atLow) * Math.sign(atHigh) <= 0)) return NaN;
  if (atLow === 0) return low;
  if (atHigh === 0) return high;
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
function refuseUnbounded(limits) {
  const { memory_bytes, serving, max_tokens, inference_tokens } = limits;
  if (hasBudget(limits)) return;
  const boundsSize = memory_bytes != null || serving != null;
  if (!boundsSize || max_tokens == null) refuse("UNBOUNDED");
  if (inference_tokens > 0) refuse("NO_BUDGET_TO_SHARE");
}

const BELOW_SMALLEST = 1e-9; // a limit may hold the smallest model exactly, and rounding must not put it outside

// The largest size within a limit; NaN where the smallest model exceeds it.
function largestWithin({ most, needed }, n_experts, shape) {
  const excess = (logWidth) => Math.log(needed(Math.exp(logWidth))) - Math.log(most);
  const low = Math.log(smallestWidth(shape)) - BELOW_SMALLEST;
  let high = low + 1;
  while (excess(high) < 0) high += 1;
  return activeParameters(shape, Math.exp(rootOf(excess, low, high)), n_experts);
}

/** The largest size within memory and speed of serving, and what bounds it; infinite without.
 *  @type {(n_experts: Experts, shape: Shape, limits: Limits) => Largest} */
export function largestSize(n_experts, shape, limits) {
  let largest = { size: Infinity, bound: "" };
  for (const limit of sizeLimits(shape, limits, n_experts)) {
    const size = largestWithin(limit, n_experts, shape);
    if (!(size > largest.size)) largest = { size, bound: limit.name };
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

const EDGE = 1e-6; // sizes so close to an end of the search are that end

// Whether limits allow the smallest model, and a token to train it on.
function isFeasible(n_experts, shape, limits) {
  const width = smallestWidth(shape);
  if (sizeLimits(shape, limits, n_experts).some(({ most, needed }) => needed(width) > most)) return false;
  const smallest = activeParameters(shape, width, n_experts);
  return tokensFor(limits, smallest) >= 1 && hasEnoughExperts(shape, n_experts);
}

// The size of the least loss, and what bounds it.
function bestSize(law, n_experts, limits, smallest, largest) {
  const largestWithToken = hasBudget(limits) ? sizeFor(limits, 1) : Infinity;
  const top = Math.max(Math.min(largest.size, largestWithToken), smallest);
  const lossOf = (logSize) => law.loss(Math.exp(logSize), Math.max(tokensFor(limits, Math.exp(logSize)), 1));
  const size = Math.exp(minimumOf(lossOf, Math.log(smallest), Math.log(top)));
  const isAt = (end) => Math.abs(Math.log(size / end)) < EDGE;
  if (isAt(smallest)) return { n_active: smallest, size_bound: "smallest" };
  if (isAt(largest.size)) return { n_active: largest.size, size_bound: largest.bound };
  if (isAt(largestWithToken)) refuse("RISES", { at: n_experts });
  const spendsAll = hasBudget(limits) && limits.max_tokens != null ? sizeFor(limits, limits.max_tokens) : Infinity;
  return isAt(spendsAll) ? { n_active: spendsAll, size_bound: "tokens" } : { n_active: size, size_bound: "" };
}

/** The optimum at a number of experts. largest: what largestSize gives, if known.
 *  @type {(law: LawAtExperts, n_experts: Experts, shape: Shape, limits: Limits, largest?: Largest) => Optimum} */
export function solve(law, n_experts, shape, limits, largest = largestSize(n_experts, shape, limits)) {
  if (limits.speeds) return solveInHours(law, n_experts, shape, limits);
  if (!isFeasible(n_experts, shape, limits)) return { n_experts, feasible: false };
  const smallest = activeParameters(shape, smallestWidth(shape), n_experts);
  const { n_active, size_bound } = bestSize(law, n_experts, limits, smallest, largest);
  const n_tokens = tokensFor(limits, n_active);
  const d_model = widthOf(shape, n_active, n_experts);
  const n_total = totalParameters(shape, d_model, n_experts);
  const loss = law.loss(n_active, n_tokens);
  return { n_experts, feasible: true, n_active, n_total, n_tokens, loss, d_model, size_bound };
}

/** The feasible ones of these optima. @type {(solved: Optimum[]) => Optimum[]} */
export function feasibleOf(solved) {
  return solved.filter(({ feasible }) => feasible);
}

/** The optimum at each number of experts; throws the command line's sentence where none is feasible.
 *  @type {(law: Law, shape: Shape, limits: Limits, experts: Experts[]) => Optimum[]} */
export function optimaOf(law, shape, limits, experts) {
  const laws = experts.map((n_experts) => lawAtExperts(law, shape, n_experts));
  refuseUnbounded(limits);
  refuseWithoutOptimum(laws, experts);
  const solved = experts.map((n_experts, i) => solve(laws[i], n_experts, shape, limits));
  if (!feasibleOf(solved).length) throw new PlanError(infeasibleReason(shape, limits, experts));
  return solved;
}

/** The optimum of the lowest loss; null where none is feasible. @type {(solved: Optimum[]) => ?Optimum} */
export function bestOf(solved) {
  let best = null;
  for (const optimum of feasibleOf(solved)) {
    if (best == null || optimum.loss < best.loss) best = optimum;
  }
  return best;
}

/** The FLOPs from `least` to `most` at which the best model with n_experts reaches the loss `goal`; null if `most` is
 *  not enough.
 * @type {(law: Law, n_experts: Experts, shape: Shape, limits: Limits, goal: Nats, least: Flops, most: Flops) => ?Flops}
 */
export function leastFlops(law, n_experts, shape, limits, goal, least, most) {
  const lawAt = lawAtExperts(law, shape, n_experts);
  const largest = largestSize(n_experts, shape, limits);
  function excess(logFlops) {
    const best = solve(lawAt, n_experts, shape, { ...limits, flops: Math.exp(logFlops) }, largest);
    return best.feasible ? best.loss - goal : Infinity;
  }
  if (excess(Math.log(least)) <= 0) return least;
  if (excess(Math.log(most)) > 0) return null;
  return Math.exp(rootOf(excess, Math.log(least), Math.log(most)));
}
