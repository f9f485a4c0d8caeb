// What a plan costs on chips, and the other way round: the least budget that reaches a loss, and the front of loss
// against cost. As fit/cost.py and fit/target.py; chips: {kind, count, mfu, dollars_per_hour, devices}, or null.

import { INFERENCE, TRAINING, active, cache } from "./counts.js";
import { reducedAt } from "./law.js";
import { bestOf, largestIn, optima, solve } from "./solve.js";
import { PlanError, refusal, say } from "./words.js";

// FLOP/s that training reaches on all of the chips.
export const rateOf = (data, { kind, count, mfu }) => count * data.chips[kind].flops * mfu;

// {NAMEhours, NAMEdollars} of so many FLOPs; nothing without chips.
function price(data, chips, flops, name = "") {
  if (!chips) return {};
  const hours = flops / rateOf(data, chips) / 3600;
  const dollars = chips.dollars_per_hour == null ? null : hours * chips.count * chips.dollars_per_hour;
  return { [`${name}hours`]: hours, [`${name}dollars`]: dollars };
}

// Adds to a plan its chips, to its optima and buildable model what they cost, and a warning where the chips are too few.
export function addCosts(data, plan, chips, shape, limits) {
  const { memory, bandwidth } = data.chips[chips.kind];
  const costOf = (row, parameters, saved) => {
    const kept = limits.bytes_per_kv_element * cache(shape, row.d_model, limits.kv_tokens);
    const read = (n) => limits.bytes_per_parameter * (n - row.d_model * shape.vocab_size) + kept;
    const speed = (n) => (chips.devices * bandwidth) / read(n);
    const training_bytes = data.cost.state_bytes * parameters + saved;
    return {
      ...price(data, chips, row.training_flops, "training_"),
      training_bytes,
      training_chips: Math.ceil(training_bytes / memory),
      tokens_per_second: { alone: speed(row.n_active), among_many: speed(row.n_total) },
    };
  };
  plan.chips = chips;
  for (const row of plan.optima) row.cost = costOf(row, row.n_total, 0);
  const built = plan.buildable;
  if (built) {
    const batch = Math.max(0, ...(built.batch_tokens ?? []).map(([, tokens]) => tokens));
    const saved = data.cost.activation_bytes * built.n_blocks * built.d_model * batch;
    built.cost = {
      ...costOf(built, built.exact_parameters, saved),
      ...stepOf(data, built, batch, saved, shape, memory),
    };
  }
  const { n_experts: e, cost } = built ?? plan.best;
  const values = { ...cost, e, kind: chips.kind, count: chips.count };
  if (cost.training_chips > chips.count) {
    const least = { need: cost.training_bytes / 1e9, least: cost.training_chips };
    plan.warnings.push(say("TOO_FEW_CHIPS", { ...values, ...least }));
  } else if (cost.step_chips > chips.count)
    plan.warnings.push(say("STEP_TOO_LARGE", { ...values, need: cost.step_bytes / 1e9 }));
}

// What a compiled step of the buildable model's largest batch takes; nulls where the batch is not known.
function stepOf({ cost }, built, batch, saved, shape, memory) {
  if (!batch) return { step_tokens: null, step_bytes: null, step_chips: null };
  const at_work = (cost.at_work + (cost.scores * 4 * built.sequence) / shape.width_per_block) * batch * built.d_model;
  const step_bytes = cost.compiled_bytes * built.exact_parameters + cost.compiled_saved * saved + at_work;
  return { step_tokens: batch, step_bytes, step_chips: Math.ceil(step_bytes / memory) };
}

// FLOPs from `least` to `most` at which the best model at e experts reaches a loss; null if `most` is not enough.
export function leastFlops(law, e, shape, limits, loss, least, most) {
  const at = reducedAt(law, e);
  const largest = limits.memory_bytes == null ? Infinity : largestIn(e, shape, limits);
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
  return { ...row, ...price(data, chips, flops) };
}

// [limits with the least budget that reaches `loss`, what it costs at each number of experts]; throws the command line's
// sentence where no budget reaches it.
export function reach(data, law, shape, limits, experts, loss, chips) {
  const smallest = active(shape, shape.width_per_block);
  const low = TRAINING * smallest + INFERENCE * smallest * limits.inference_tokens;
  const rows = experts.map((e) => {
    const flops = leastFlops(law, e, shape, limits, loss, low, data.largest);
    if (flops == null) return { n_experts: e, flops };
    return rowOf(data, solve(reducedAt(law, e), e, shape, { ...limits, flops }), limits, chips);
  });
  const reached = rows.filter(({ flops }) => flops != null);
  if (!reached.length) {
    const most = bestOf(optima(law, shape, { ...limits, flops: data.largest }, experts));
    refusal("OUT_OF_REACH", { loss, least: most.loss });
  }
  const best = reached.reduce((least, row) => (row.flops < least.flops ? row : least));
  return [
    { ...limits, flops: best.flops },
    { loss, optima: rows, best },
  ];
}

// The best models under budgets of `shares` times that of the limits, as the rows of `reach`.
export function front(data, law, shape, limits, experts, chips, shares = data.cost.front) {
  return shares.flatMap((share) => {
    try {
      const best = bestOf(optima(law, shape, { ...limits, flops: share * limits.flops }, experts));
      return [rowOf(data, best, limits, chips)];
    } catch (error) {
      if (error instanceof PlanError) return []; // too small to train and serve any model
      throw error;
    }
  });
}
