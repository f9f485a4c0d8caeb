// A published model to start from. Python counts it (fit/model/reference_model.py); the page holds the counts.

import { shapeOf, structureColumns } from "./counts.js";
import { countsOfLaw } from "./law.js";
import { PlanError } from "./messages.js";

/** The published model of a name; null for "". Throws PlanError. @type {(data: Data, name: string) => ?Reference} */
export function referenceModel(data, name) {
  if (name === "") return null;
  if (name in data.published) return data.published[name];
  const names = Object.keys(data.published).join(", ");
  const advice = "fit plan --like takes a config.json";
  throw new PlanError(`--like=${name}: this page holds no such model, but ${names}; ${advice}`);
}

/** Models built like it, with experts as the law counts them. @type {(reference: Reference, law: Law) => object} */
export function referenceShape({ shape }, law) {
  return { ...shape, counts_routed_experts: Boolean(law.own) };
}

/** What the law reads of it. @type {(reference: Reference, law: Law) => object} */
export function referenceColumns(reference, law) {
  const { n_experts, whole_experts, n_embedding } = reference.counts;
  const shape = shapeOf(referenceShape(reference, law));
  const d_model = n_embedding / shape.vocab_size;
  const experts = shape.counts_routed_experts ? n_experts : whole_experts;
  return { ...structureColumns(shape, experts), ...countsOfLaw(law, shape, { ...reference.counts, d_model }) };
}
