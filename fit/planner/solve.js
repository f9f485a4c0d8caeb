// The model of the least loss at E experts under limits: N active parameters on D training tokens, both real numbers.
// law: what lawAt gives at E experts; shape and limits: as in counts.js.

import { INFERENCE_FLOPS, TRAINING_FLOPS, activeParameters, hasEnoughExperts, memoryOf } from "./counts.js";
import { smallestWidth, tokensOf, totalParameters, trainingBytesAt, widthOf } from "./counts.js";
import { falls, lawAt } from "./law.js";
import { PlanError, infeasibleWhy, refuse } from "./messages.js";

const EDGE = 1e-6; // sizes so close to an end of the search are that end

// Where f changes sign between low and high, to the last bit; NaN where the signs do not differ.
export function rootOf(f, low, high) {
  const atLow = f(low);
  const atHigh = f(high);
  if (!(Math.sign(atLow) * Math.sign(atHigh) <= 0)) return NaN;
  if (atLow === 0) return low;
  if (atHigh === 0) return high;
  const decreasing = atLow > atHigh;
  for (;;) {
    const middle = (low + high) / 2;
    if (middle === low || middle === high || Number.isNaN(middle)) return middle;
    if (f(middle) > 0 === decreasing) low = middle;
    else high = middle;
  }
}

// Throws the command line's sentence where the law has no optimum at one of these numbers of experts.
export function refuseWithoutOptimum(laws, experts) {
  const at = laws.findIndex((law) => !falls(law));
  if (at < 0) return;
  const largest = (i) => Math.max(...laws.map(({ exponents }) => exponents[i]));
  refuse("NO_OPTIMUM", { at: experts[at], mu: largest(0), nu: largest(1) });
}

// Throws the command line's sentence where nothing bounds the plan.
function refuseUnbounded({ flops, memory_bytes, chips, max_tokens, inference_tokens }) {
  if (flops != null) return;
  const boundsSize = memory_bytes != null || chips != null;
  if (!boundsSize || max_tokens == null) refuse("UNBOUNDED");
  if (inference_tokens > 0) refuse("NO_BUDGET_TO_SHARE");
}

const BELOW_SMALLEST = 1e-9; // a limit may hold the smallest model exactly, and rounding must not put it outside

// The largest size whose bytes, a function of the width, do not exceed `most`; NaN where the smallest model's do.
function largestWithin(bytes, most, e, shape) {
  const excess = (logWidth) => Math.log(bytes(Math.exp(logWidth))) - Math.log(most);
  const low = Math.log(smallestWidth(shape)) - BELOW_SMALLEST;
  let high = low + 1;
  while (excess(high) < 0) high += 1;
  return activeParameters(shape, Math.exp(rootOf(excess, low, high)), e);
}

function largestInMemory(e, shape, limits) {
  if (limits.memory_bytes == null) return Infinity;
  return largestWithin((d) => memoryOf(shape, limits, d, e), limits.memory_bytes, e, shape);
}

function largestOnChips(e, shape, { chips }) {
  if (chips == null) return Infinity;
  return largestWithin((d) => trainingBytesAt(shape, chips, d, e), chips.count * chips.memory, e, shape);
}

// The largest size that memory and chips hold, infinite without these.
export const largestSize = (e, shape, limits) =>
  Math.min(largestInMemory(e, shape, limits), largestOnChips(e, shape, limits));

const GRID = 20;
const REFINED = 8; // each time to a tenth

// Where f, which falls and then rises, is least between two ends: on a grid that is refined around its best point.
function minimumOf(f, from, to) {
  let low = from;
  let high = to;
  for (let step = 0; step < REFINED; step++) {
    const points = Array.from({ length: GRID + 1 }, (_, i) => low + (i / GRID) * (high - low));
    const values = points.map(f);
    const best = values.indexOf(Math.min(...values));
    low = points[Math.max(best - 1, 0)];
    high = points[Math.min(best + 1, GRID)];
  }
  return (low + high) / 2;
}

// The size of the least loss; Infinity where the largest size alone limits it, 0 where it is the smallest.
function bestSize(law, e, limits, smallest, largest) {
  const perSize = TRAINING_FLOPS + INFERENCE_FLOPS * limits.inference_tokens;
  const lastWithToken = limits.flops == null ? Infinity : limits.flops / perSize;
  const top = Math.max(Math.min(largest, lastWithToken), smallest);
  function lossAt(logSize) {
    const size = Math.exp(logSize);
    return law.loss(size, Math.max(tokensOf(limits, size), 1));
  }
  const size = Math.exp(minimumOf(lossAt, Math.log(smallest), Math.log(top)));
  if (size > top * (1 - EDGE)) {
    if (top === lastWithToken && top > smallest * (1 + 10 * EDGE)) refuse("RISES", { at: e });
    if (top === largest) return Infinity;
  }
  return size < smallest * (1 + EDGE) ? 0 : size;
}

// Whether limits allow the smallest model of e experts and a token to train it on.
function isFeasible(e, shape, limits) {
  const d = smallestWidth(shape);
  const { memory_bytes, chips } = limits;
  if (memory_bytes != null && memoryOf(shape, limits, d, e) > memory_bytes) return false;
  if (chips && trainingBytesAt(shape, chips, d, e) > chips.count * chips.memory) return false;
  return tokensOf(limits, activeParameters(shape, d, e)) >= 1 && hasEnoughExperts(shape, e);
}

// The optimum at e experts; size_bound: what fixed its size, "" where nothing did. largest: the largest size, if known.
export function solve(law, e, shape, limits, largest = largestSize(e, shape, limits)) {
  if (!isFeasible(e, shape, limits)) return { n_experts: e, feasible: false };
  const { flops, max_tokens, inference_tokens } = limits;
  const smallest = activeParameters(shape, smallestWidth(shape), e);
  let size = bestSize(law, e, limits, smallest, largest);
  let size_bound = "";
  if (flops != null && max_tokens != null) {
    const spendsAll = flops / (TRAINING_FLOPS * max_tokens + INFERENCE_FLOPS * inference_tokens);
    if (spendsAll * (1 + EDGE) > size) {
      size = Math.max(size, spendsAll);
      size_bound = "tokens";
    }
  }
  if (size > largest) {
    size = largest;
    size_bound = largestOnChips(e, shape, limits) === largest ? "chips" : "memory";
  }
  if (size < smallest) {
    size = smallest;
    size_bound = "smallest";
  }
  const n_tokens = tokensOf(limits, size);
  const d_model = widthOf(shape, size, e);
  const n_total = totalParameters(shape, d_model, e);
  const loss = law.loss(size, n_tokens);
  return { n_experts: e, feasible: true, n_active: size, n_total, n_tokens, loss, d_model, size_bound };
}

// The optimum at each number of experts; throws the command line's sentence where none is feasible.
export function optima(law, shape, limits, experts) {
  const laws = experts.map((e) => lawAt(law, shape, e));
  refuseUnbounded(limits);
  refuseWithoutOptimum(laws, experts);
  const solved = experts.map((e, i) => solve(laws[i], e, shape, limits));
  if (!solved.some(({ feasible }) => feasible)) throw new PlanError(infeasibleWhy(shape, limits, experts));
  return solved;
}

// The optimum of the lowest loss; null where none is feasible.
export function bestOf(solved) {
  const feasible = solved.filter((one) => one.feasible);
  if (!feasible.length) return null;
  return feasible.reduce((best, one) => (one.loss < best.loss ? one : best));
}

// FLOPs from `least` to `most` at which the best model of e experts reaches a loss; null if `most` is not enough.
export function leastFlops(law, e, shape, limits, loss, least, most) {
  const at = lawAt(law, shape, e);
  const largest = largestSize(e, shape, limits);
  function excess(logFlops) {
    const best = solve(at, e, shape, { ...limits, flops: Math.exp(logFlops) }, largest);
    return best.feasible ? best.loss - loss : Infinity;
  }
  if (excess(Math.log(least)) <= 0) return least;
  if (excess(Math.log(most)) > 0) return null;
  return Math.exp(rootOf(excess, Math.log(least), Math.log(most)));
}
