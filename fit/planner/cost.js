// What a plan costs on chips, and the other way round: the least budget that reaches a loss, and the front of loss
// against cost. As fit/planning/cost.py and fit/planning/target.py; chips: {kind, count, mfu, dollars_per_hour, devices},
// or null; mfu: a number, or {n_experts: number}.

import { INFERENCE, TRAINING, active, byExperts, cache, endsOf, holding, smallestOf } from "./counts.js";
import { timesFlops, trainingOf } from "./counts.js";
import { lawAt } from "./law.js";
import { bestOf, largestIn, optima, solve } from "./solve.js";
import { PlanError, refusal, say } from "./words.js";

// FLOP/s that training a model of e experts reaches on all of the chips; and FLOPs in so many hours, as limits have them.
export const rateOf = (data, { kind, count, mfu }, e) =>
  count * data.chips[kind].flops * (typeof mfu === "object" ? mfu[e] : mfu);
export const flopsIn = (data, chips, hours) =>
  byExperts(chips.mfu, (mfu) => 3600 * hours * rateOf(data, { ...chips, mfu }));

// {NAMEhours, NAMEdollars} of so many FLOPs; nothing without chips.
function price(data, chips, flops, e, name = "") {
  if (!chips) return {};
  const hours = flops / rateOf(data, chips, e) / 3600;
  const dollars = chips.dollars_per_hour == null ? null : hours * chips.count * chips.dollars_per_hour;
  return { [`${name}hours`]: hours, [`${name}dollars`]: dollars };
}

// What the chips hold in training, for the limits, with the share of their memory that a plan fills; null without chips.
export const chipLimits = (data, chips) =>
  chips && { ...data.cost, kind: chips.kind, count: chips.count, memory: data.cost.room * data.chips[chips.kind].memory };

// Adds to a plan its chips, to its optima what they cost, and a warning where the chips bound the best.
export function addCosts(data, plan, law, chips, shape, limits, experts) {
  const { memory, bandwidth } = data.chips[chips.kind];
  const costOf = (row, parameters) => {
    const kept = limits.bytes_per_kv_element * cache(shape, row.d_model, limits.kv_tokens);
    const read = (n) => limits.bytes_per_parameter * (n - row.d_model * (endsOf(shape) - shape.vocab_size)) + kept;
    const serving_chips = Math.max(chips.devices, Math.ceil((row.memory_bytes / memory) * (1 - 1e-12)));
    const speed = (n) => (serving_chips * bandwidth) / read(n);
    const training_chips = holding(shape, limits.chips, row.d_model, parameters);
    return {
      ...price(data, chips, row.training_flops, row.n_experts, "training_"),
      training_bytes: training_chips && trainingOf(shape, limits.chips, row.d_model, parameters, training_chips),
      training_chips,
      serving_chips,
      tokens_per_second: { alone: speed(row.n_active), among_many: speed(row.n_total) },
    };
  };
  plan.chips = chips;
  for (const row of plan.optima) row.cost = costOf(row, row.n_total);
  const { best } = plan;
  const { kind, count } = chips;
  if (best.size_bound === "chips" && (limits.flops != null || limits.memory_bytes != null)) {
    const free = bestOf(optima(law, shape, { ...limits, chips: null }, experts));
    const needed = holding(shape, limits.chips, free.d_model, free.n_total);
    const values = { e: free.n_experts, loss: best.loss - free.loss, kind, count };
    plan.warnings.push(say("CHIPS_BIND", { ...values, needed: needed ? say("CHIPS_NEEDED", { needed }) : "" }));
  }
}

// FLOPs from `least` to `most` at which the best model at e experts reaches a loss; null if `most` is not enough.
export function leastFlops(law, e, shape, limits, loss, least, most) {
  const at = lawAt(law, shape, e);
  const largest = largestIn(e, shape, limits);
  const reaches = (log) => {
    const best = solve(at, e, shape, { ...limits, flops: Math.exp(log) }, largest);
    return best.feasible && best.loss <= loss;
  };
  let [low, high] = [Math.log(least), Math.log(most)];
  if (reaches(low)) return least;
  if (!reaches(high)) return null;
  for (let x = (low + high) / 2; x > low && x < high; x = (low + high) / 2) {
    if (reaches(x)) high = x;
    else low = x;
  }
  return Math.exp(high);
}

function rowOf(data, { n_experts, n_active, n_tokens, loss }, limits, chips) {
  const training_flops = TRAINING * n_active * n_tokens;
  const inference_flops = INFERENCE * n_active * limits.inference_tokens;
  const flops = training_flops + inference_flops;
  const row = { n_experts, n_active, n_tokens, loss, flops, training_flops, inference_flops };
  return { ...row, ...price(data, chips, flops, n_experts) };
}

// [limits with the least budget that reaches `loss`, what it costs at each number of experts]; throws the command line's
// sentence where no budget reaches it.
export function reach(data, law, shape, limits, experts, loss, chips) {
  const smallest = Math.min(...experts.map((e) => active(shape, smallestOf(shape), e)));
  const low = TRAINING * smallest + INFERENCE * smallest * limits.inference_tokens;
  const rows = experts.map((e) => {
    const flops = leastFlops(law, e, shape, limits, loss, low, data.largest);
    if (flops == null) return { n_experts: e, flops };
    return rowOf(data, solve(lawAt(law, shape, e), e, shape, { ...limits, flops }), limits, chips);
  });
  const reached = rows.filter(({ flops }) => flops != null);
  if (!reached.length) {
    const most = bestOf(optima(law, shape, { ...limits, flops: data.largest }, experts));
    refusal("OUT_OF_REACH", { loss, least: most.loss });
  }
  const cost = chips && typeof chips.mfu === "object" ? "hours" : "flops";
  const best = reached.reduce((least, row) => (row[cost] < least[cost] ? row : least));
  return [
    { ...limits, flops: cost === "hours" ? flopsIn(data, chips, best.hours) : best.flops },
    { loss, optima: rows, best },
  ];
}

// The best models under budgets of `shares` times that of the limits, as the rows of `reach`.
export function front(data, law, shape, limits, experts, chips, shares = data.cost.front) {
  return shares.flatMap((share) => {
    try {
      const best = bestOf(optima(law, shape, timesFlops(limits, share), experts));
      return [rowOf(data, best, limits, chips)];
    } catch (error) {
      if (error instanceof PlanError) return []; // too small to train and serve any model
      throw error;
    }
  });
}
