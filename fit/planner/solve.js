// The best (N active parameters, D training tokens) of a law at E experts under limits. N and D are real numbers, loss
// in nats per token, memory in bytes. limits: {flops, memory_bytes, bytes_per_parameter, kv_tokens,
// bytes_per_kv_element, inference_tokens, max_tokens, epochs, chips}; flops, memory_bytes, max_tokens, epochs and chips
// may be null: no such limit; each token is read once where epochs is null; flops may be {n_experts: FLOPs}.
// shape: as in counts.js; law: what lawAt gives at E experts.

import { INFERENCE, TRAINING, active, capOf, enough, leastOf, limitsAt, memoryOf, smallestOf } from "./counts.js";
import { tokensOf, total, widthOf } from "./counts.js";
import { falls, lawAt } from "./law.js";
import { PlanError, infeasibleWhy, refusal } from "./words.js";

export const BAND = 1e-3; // near-optimal: within this share of the best loss
export const AS_GOOD = 1e-4; // as good as the best: within this share of its loss
const PLATEAU = 0.75; // where a model of this share of the best size is as good, larger ones are worth nothing

// Where f changes sign between low and high, to the last bit; NaN where the signs do not differ.
function root(f, low, high) {
  const atLow = f(low);
  const atHigh = f(high);
  if (!(Math.sign(atLow) * Math.sign(atHigh) <= 0)) return NaN;
  if (atLow === 0) return low;
  if (atHigh === 0) return high;
  for (const falls = atLow > atHigh; ;) {
    const x = (low + high) / 2;
    if (x === low || x === high || Number.isNaN(x)) return x;
    if (f(x) > 0 === falls) low = x;
    else high = x;
  }
}

// Throws the command line's sentence where the laws at these experts have no optimum; for those without a closed form,
// `searched` finds that out.
export function refuseWithoutOptimum(laws, experts) {
  const at = laws.findIndex((law) => !falls(law));
  const worst = (i) => Math.max(...laws.map(({ closed }) => closed[i]));
  if (at >= 0) refusal("NO_OPTIMUM", { at: experts[at], mu: worst(1), nu: worst(3) });
}

// Throws the command line's sentence where nothing bounds the plan.
function refuseUnbounded(limits) {
  if (limits.flops == null && ((limits.memory_bytes == null && !limits.chips) || limits.max_tokens == null))
    refusal("UNBOUNDED");
  if (limits.flops == null && limits.inference_tokens > 0) refusal("NO_BUDGET_TO_SHARE");
}

// N that loses least with inference tokens in the budget: what a larger model gains equals what its lost tokens cost.
function withInference({ closed: [m, mu, n, nu] }, limits) {
  const budget = limits.flops / TRAINING;
  const inference = (INFERENCE / TRAINING) * limits.inference_tokens;
  const top = Math.log(budget / inference); // at this ln N no token is left to train on
  const gainOverCost = (x) =>
    Math.log(m * -mu) +
    mu * x -
    (Math.log(n * -nu) + (nu - 1) * Math.log(budget * Math.exp(-x) - inference) + Math.log(budget) - x);
  return Math.exp(root(gainOverCost, top - 200, top - 1e-13 * Math.abs(top)));
}

// The largest size that memory and chips hold, infinite without these.
export const largestIn = (e, shape, limits) => Math.min(heldBy("memory", e, shape, limits), heldBy("chips", e, shape, limits));

// The largest size that one of the two holds.
function heldBy(which, e, shape, limits) {
  const { memory_bytes, chips } = limits;
  if ((which === "memory" ? memory_bytes : chips) == null) return Infinity;
  const [bytes, most] =
    which === "memory"
      ? [(d) => memoryOf(shape, limits, d, e), memory_bytes]
      : [(d) => leastOf(shape, limits, d, e), chips.count * chips.memory];
  const low = Math.log(smallestOf(shape));
  const excess = (x) => Math.log(bytes(Math.exp(x))) - Math.log(most);
  let high = low + 1;
  while (excess(high) < 0) high += 1;
  return active(shape, Math.exp(root(excess, low, high)), e);
}

// The least size whose loss is higher than that of `size` by no more than the share `slack`, where it is at most PLATEAU
// of it; else null.
function onPlateau(law, slack, limits, size, smallest) {
  const f = (n) => law.loss(n, Math.max(tokensOf(limits, n), 1));
  const [most, less] = [f(size) * (1 + slack), Math.max(PLATEAU * size, smallest)];
  if (!(less < size && f(less) <= most)) return null;
  return f(smallest) <= most ? smallest : Math.exp(root((x) => f(Math.exp(x)) - most, Math.log(smallest), Math.log(less)));
}

// The best size without any other limit than the budget (App. C).
export const computeOptimal = ({ closed: [m, mu, n, nu] }, flops) =>
  ((m * mu) / (n * nu)) ** (-1 / (mu + nu)) * (flops / TRAINING) ** (nu / (mu + nu));

// The size of the least loss between `smallest` and what limits allow, for a law without a closed form: by a grid, then
// by golden section around its best point. Infinity where the memory alone limits it, 0 where it is the smallest.
function searched(law, e, limits, smallest, largest) {
  const last = limits.flops == null ? Infinity : limits.flops / (TRAINING + INFERENCE * limits.inference_tokens);
  const top = Math.max(Math.min(largest, last), smallest);
  const f = (x) => law.loss(Math.exp(x), Math.max(tokensOf(limits, Math.exp(x)), 1));
  const [from, to] = [Math.log(smallest), Math.log(top)];
  const grid = Array.from({ length: 65 }, (_, i) => from + (i / 64) * (to - from));
  const losses = grid.map(f);
  const best = losses.reduce((least, loss, i) => (loss < losses[least] ? i : least), 0);
  let [low, high] = [grid[Math.max(best - 1, 0)], grid[Math.min(best + 1, 64)]];
  const golden = (Math.sqrt(5) - 1) / 2;
  let [a, b] = [high - golden * (high - low), low + golden * (high - low)];
  for (let [atA, atB] = [f(a), f(b)]; high - low > 1e-12 * (to - from) && a < b;)
    if (atA <= atB) {
      [high, b, atB] = [b, a, atA];
      a = high - golden * (high - low);
      atA = f(a);
    } else {
      [low, a, atA] = [a, b, atB];
      b = low + golden * (high - low);
      atB = f(b);
    }
  const size = Math.exp((low + high) / 2);
  const atTop = size > top * (1 - 1e-6);
  if (atTop && top === last && top > smallest * (1 + 1e-5)) refusal("RISES", { at: e });
  return atTop && top === largest ? Infinity : size < smallest * (1 + 1e-6) ? 0 : size;
}

// The optimum at e experts; law: what lawAt gives there. size_bound says what fixed the size. largest: the largest
// size that memory holds, if known already.
export function solve(law, e, shape, limits, largest) {
  limits = limitsAt(limits, e);
  const d = smallestOf(shape);
  const smallest = active(shape, d, e);
  const fits = limits.memory_bytes == null || memoryOf(shape, limits, d, e) <= limits.memory_bytes;
  const trains = !limits.chips || leastOf(shape, limits, d, e) <= limits.chips.count * limits.chips.memory;
  const feasible = fits && trains && tokensOf(limits, smallest) >= 1 && enough(shape, e);
  if (!feasible) return { n_experts: e, feasible, loss: NaN, n_active: NaN, n_tokens: NaN, n_total: NaN, d_model: NaN };
  largest ??= largestIn(e, shape, limits);
  let [size, bound] = [largest, null];
  if (law.searched) size = searched(law, e, limits, smallest, largest);
  else if (limits.flops != null)
    size = limits.inference_tokens > 0 ? withInference(law, limits) : computeOptimal(law, limits.flops);
  if (law.searched || limits.flops != null) bound = "";
  if (limits.flops != null && limits.max_tokens != null) {
    const all = limits.flops / (TRAINING * capOf(limits) + INFERENCE * limits.inference_tokens);
    if (all * (law.closed && !law.unique ? 1 : 1 + 1e-6) > size) [size, bound] = [Math.max(size, all), "tokens"];
  }
  if (size > largest) [size, bound] = [largest, null];
  bound ??= heldBy("chips", e, shape, limits) === largest ? "chips" : "memory";
  if (size < smallest) [size, bound] = [smallest, "smallest"];
  const near = law.slack ? onPlateau(law, law.slack, limits, size, smallest) : null;
  if (near) [size, bound] = [near, "plateau"];
  const n_tokens = tokensOf(limits, size);
  const d_model = widthOf(shape, size, e);
  const n_total = total(shape, d_model, e);
  return { n_experts: e, feasible, n_active: size, n_total, n_tokens, loss: law.loss(size, n_tokens), d_model, size_bound: bound };
}

// The optimum at each number of experts; throws the command line's sentence where none is feasible.
export function optima(law, shape, limits, experts) {
  const laws = experts.map((e) => lawAt(law, shape, e));
  refuseUnbounded(limits);
  refuseWithoutOptimum(laws, experts);
  const solved = experts.map((e, i) => solve(laws[i], e, shape, limits));
  if (!solved.some((o) => o.feasible)) throw new PlanError(infeasibleWhy(shape, limits, experts));
  return solved;
}

// The lowest loss, and that optimum; null where none is feasible.
export function bestOf(solved) {
  return solved.reduce((best, o) => (o.feasible && !(best && best.loss <= o.loss) ? o : best), null);
}

// [smallest, largest] size within BAND of the best loss `least` for an optimum; null if it has no such size.
export function nearOptimal(law, optimum, shape, limits, least) {
  const target = least * (1 + BAND);
  if (!(optimum.loss <= target)) return null;
  const e = optimum.n_experts;
  limits = limitsAt(limits, e);
  const at = lawAt(law, shape, e);
  const budget = limits.flops == null ? Infinity : limits.flops / TRAINING;
  const inference = (INFERENCE / TRAINING) * limits.inference_tokens;
  const smallest = active(shape, smallestOf(shape), e);
  let largest = Math.max(smallest, largestIn(e, shape, limits));
  if (limits.flops != null) largest = Math.min(largest, budget / (inference + 1)); // one token left
  const excess = (x) => {
    const d = Math.min(budget * Math.exp(-x) - inference, capOf(limits) ?? Infinity);
    return at.loss(Math.exp(x), d) - target;
  };
  return [smallest, largest].map((end) => {
    const edge = root(excess, Math.log(optimum.n_active), Math.log(end));
    return Number.isNaN(edge) ? Math.exp(Math.log(end)) : Math.exp(edge); // no root: the bound itself
  });
}
