// A published model to start from. Python counts it (fit/shape/reference_model.py); the page holds the counts.

import { shapeOf, structure } from "./counts.js";
import { ownCounts } from "./law.js";
import { PlanError } from "./messages.js";

// {counts, shape(law): fields of a shape like its} of a published name; null for "". Throws PlanError for another name.
export function referenceModel(data, name) {
  if (name === "") return null;
  if (!(name in data.published)) {
    const names = Object.keys(data.published).join(", ");
    const advice = "drop a config.json for its command";
    throw new PlanError(`--like=${name}: this page holds no such model, but ${names}; ${advice}`);
  }
  return data.published[name];
}

// The shape of models built like it, as the law counts experts.
export const referenceShape = ({ shape }, law) => ({ ...shape, trained: Boolean(law.own) });

// What the law reads of it.
export function referenceColumns(reference, law) {
  const { n_experts, whole_experts, n_embedding } = reference.counts;
  const shape = shapeOf(referenceShape(reference, law));
  const d_model = n_embedding / shape.vocab_size;
  const experts = shape.trained ? n_experts : whole_experts;
  return { ...structure(shape, experts), ...ownCounts(law, shape, { ...reference.counts, d_model }) };
}
