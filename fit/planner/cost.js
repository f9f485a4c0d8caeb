// What a plan costs on chips: hours, dollars, memory and speed.

import { SECONDS_OF_AN_HOUR, fewestChips, hasBudget, trainingBytes } from "./counts.js";
import { say } from "./messages.js";
import { servingOf } from "./serving.js";
import { bestOf, optimaOf } from "./solve.js";

/** FLOPs that training spends in an hour on all of the chips at one MFU. @type {(data: Data, chips: Chips) => Flops} */
export function flopsPerHour(data, { kind, count, mfu }) {
  return SECONDS_OF_AN_HOUR * count * data.chips[kind].flops * mfu;
}

/** The chips as a limit: a plan fills a share of their memory. @type {(data: Data, chips: ?Chips) => ?TrainingChips} */
export function chipLimits(data, chips) {
  if (!chips) return null;
  const memory = data.cost.room * data.chips[chips.kind].memory;
  return { ...data.cost, kind: chips.kind, count: chips.count, memory };
}

/** What a row of the plan costs to train and to serve.
 *  @type {(data: Data, chips: Chips, row: object, shape: Shape, limits: Limits) => object} */
export function costOf(data, chips, row, shape, limits) {
  const { d_model, n_total, training_flops, speed } = row;
  const training_hours = speed ? speed.hours[1] : training_flops / flopsPerHour(data, chips);
  const { dollars_per_hour } = chips;
  const count = row.chips ?? chips.count;
  const training_dollars = dollars_per_hour == null ? null : training_hours * count * dollars_per_hour;
  const training_chips = fewestChips(shape, limits.chips, d_model, n_total);
  let training_bytes = null;
  if (training_chips) training_bytes = trainingBytes(shape, limits.chips, d_model, n_total, training_chips);
  const serving = servingOf(data, chips, row, shape, limits);
  const serving_chips = serving.chips;
  return { training_hours, training_dollars, training_bytes, training_chips, serving_chips, serving };
}

/** Says what the chips cost in loss, where they alone bound the best model.
 *  @type {(law: Law, best: Optimum, options: Options, limits: Limits) => string[]} */
export function chipsWarning(law, best, { chips, shape, experts }, limits) {
  const hasOtherBound = hasBudget(limits) || limits.memory_bytes != null;
  if (best.size_bound !== "chips" || !hasOtherBound) return [];
  const unlimited = bestOf(optimaOf(law, shape, { ...limits, chips: null }, experts));
  const count = fewestChips(shape, limits.chips, unlimited.d_model, unlimited.n_total);
  const needed = count ? say("CHIPS_NEEDED", { needed: count }) : "";
  return [say("CHIPS_BIND", { ...chips, e: unlimited.n_experts, loss: best.loss - unlimited.loss, needed })];
}
