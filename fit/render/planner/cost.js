// The cost of a plan on chips: hours, dollars and speed. Whether they hold its training is left to the command line.

import { SECONDS_OF_AN_HOUR } from "./counts.js";
import { data } from "./data.js";
import { servingOf } from "./serving.js";

/** FLOPs that training spends in an hour on all of the chips at one MFU. @type {(chips: Chips) => Flops} */
export function flopsPerHour({ kind, count, mfu }) {
  return SECONDS_OF_AN_HOUR * count * data.chips[kind].flops * mfu;
}

/** The cost of training and of serving a row of the plan.
 *  @type {(chips: Chips, row: object, shape: Shape, limits: Limits) => object} */
export function costOf(chips, row, shape, limits) {
  const { training_flops, speed } = row;
  const training_hours = speed ? speed.hours[1] : training_flops / flopsPerHour(chips);
  const { dollars_per_hour } = chips;
  const count = row.chips ?? chips.count;
  const training_dollars = dollars_per_hour == null ? null : training_hours * count * dollars_per_hour;
  const serving = servingOf(chips, row, shape, limits);
  return { training_hours, training_dollars, serving_chips: serving.chips, serving };
}
