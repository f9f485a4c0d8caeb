// A published model to start from. Python counts it from its config.json (fit/shape/like.py); the page holds the counts.

import { shapeOf, structure } from "./counts.js";
import { PlanError } from "./messages.js";

// {counts, shape(law): fields of a shape like its} of a published name; null for "". Throws PlanError for another name.
export function referenceModel(data, name) {
  if (name === "") return null;
  if (!(name in data.published)) {
    const names = Object.keys(data.published).join(", ");
    throw new PlanError(`--like=${name}: this page holds no such model, but ${names}; drop a config.json for its command`);
  }
  return data.published[name];
}

// The shape of models built like it, as the law counts experts.
export const referenceShape = ({ shape }, law) => ({ ...shape, trained: Boolean(law.own) });

// What the law reads of it.
export function referenceColumns(reference, law) {
  const { n_active, n_total, n_experts, whole_experts, n_embedding } = reference.counts;
  const shape = shapeOf(referenceShape(reference, law));
  const ends = n_embedding * (shape.tied ? 1 : 2);
  const left_out = law.counts_embedding ? 0 : ends;
  const experts = shape.trained ? n_experts : whole_experts;
  return { ...structure(shape, experts), n_active: n_active - left_out, n_total: n_total - left_out };
}
