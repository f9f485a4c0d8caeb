// What a plan costs on chips: {kind, count, mfu, dollars_per_hour, devices}, or null.

import { cacheElements, countThatHolds, endsOf, fewestChips, trainingBytes } from "./counts.js";
import { say } from "./messages.js";
import { bestOf, optima } from "./solve.js";

// FLOPs that training spends in an hour on all of the chips.
export const flopsPerHour = (data, { kind, count, mfu }) => 3600 * count * data.chips[kind].flops * mfu;

// What the chips hold in training, as limits have it: with the share of their memory that a plan fills.
export function chipLimits(data, chips) {
  if (!chips) return null;
  const memory = data.cost.room * data.chips[chips.kind].memory;
  return { ...data.cost, kind: chips.kind, count: chips.count, memory };
}

// Adds to a plan its chips, to its optima what they cost, and a warning where the chips bound the best.
export function addCosts(data, plan, law, chips, shape, limits, experts) {
  plan.chips = chips;
  for (const row of plan.optima)
    row.cost = { ...trainingCost(data, chips, row), ...memoryCost(data, chips, row, shape, limits) };
  const { best } = plan;
  const hasOtherBound = limits.flops != null || limits.memory_bytes != null;
  if (best.size_bound !== "chips" || !hasOtherBound) return;
  const free = bestOf(optima(law, shape, { ...limits, chips: null }, experts));
  const count = fewestChips(shape, limits.chips, free.d_model, free.n_total);
  const needed = count ? say("CHIPS_NEEDED", { needed: count }) : "";
  plan.warnings.push(say("CHIPS_BIND", { ...chips, e: free.n_experts, loss: best.loss - free.loss, needed }));
}

function trainingCost(data, chips, { training_flops }) {
  const hours = training_flops / flopsPerHour(data, chips);
  const { count, dollars_per_hour } = chips;
  const training_dollars = dollars_per_hour == null ? null : hours * count * dollars_per_hour;
  return { training_hours: hours, training_dollars };
}

function memoryCost(data, chips, row, shape, limits) {
  const { memory, bandwidth } = data.chips[chips.kind];
  const training_chips = fewestChips(shape, limits.chips, row.d_model, row.n_total);
  const training_bytes =
    training_chips && trainingBytes(shape, limits.chips, row.d_model, row.n_total, training_chips);
  const serving_chips = Math.max(chips.devices, countThatHolds(row.memory_bytes, memory));
  const cache = limits.bytes_per_kv_element * cacheElements(shape, row.d_model, limits.kv_tokens);
  // A token reads all weights that it uses, but of the embedding a single row.
  const unread = row.d_model * (endsOf(shape) - shape.vocab_size);
  const bytesRead = (n_parameters) => limits.bytes_per_parameter * (n_parameters - unread) + cache;
  const speed = (n_parameters) => (serving_chips * bandwidth) / bytesRead(n_parameters);
  const tokens_per_second = { alone: speed(row.n_active), among_many: speed(row.n_total) };
  return { training_bytes, training_chips, serving_chips, tokens_per_second };
}
