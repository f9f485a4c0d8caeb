// Sentences and findings: the command line's own templates (fit/messages/), filled in.

import { INFERENCE_FLOPS, TRAINING_FLOPS, hasEnoughExperts, smallestModel, topK } from "./counts.js";
import { data } from "./data.js";
import { fillTemplate } from "./numbers.js";
import { exceededLimit } from "./serving.js";

/** A sentence of the command line. @type {(name: string, values?: object) => string} */
export function say(name, values = {}) {
  return fillTemplate(data.sentences[name], values);
}

/** A finding of the command line. @type {(code: string, values?: object) => Finding} */
export function finding(code, values = {}) {
  const { template, severity } = data.catalogue[code];
  return { code, severity, values, text: fillTemplate(template, values) };
}

/** A question without a plan; its message is the command line's sentence. */
export class PlanError extends Error {}

/** Throws a sentence of the command line. @type {(name: string, values?: object) => never} */
export function refuse(name, values) {
  throw new PlanError(say(name, values));
}

/** The result of compute(); where that throws a PlanError, null, after onError was called with its sentence.
 *  @type {<T>(compute: () => T, onError: (sentence: string) => void) => ?T} */
export function withErrors(compute, onError) {
  try {
    return compute();
  } catch (error) {
    if (!(error instanceof PlanError)) throw error;
    onError(error.message);
    return null;
  }
}

/** Why nothing is feasible at these numbers of experts: which limit the smallest model exceeds, and how far.
 *  @type {(shape: Shape, limits: Limits, experts: Experts[]) => string} */
export function infeasibleReason(shape, limits, experts) {
  const possible = experts.filter((n_experts) => hasEnoughExperts(shape, n_experts));
  if (!possible.length) return say("TOO_FEW_EXPERTS", { e: Math.max(...experts), used: topK(shape) });
  const e = Math.min(...possible);
  const model = smallestModel(shape, limits, e);
  const { n_active, d_model: d } = model;
  const smallest = say(shape.n_dense ? "SMALLEST_OF" : "SMALLEST", { d, e, blocks: 1 + shape.n_dense });
  const exceeded = exceededLimit(shape, limits, model);
  if (exceeded) {
    const { sentence, most, needed, values } = exceeded;
    const need = needed(model);
    const gigabytes = { need: need / 1e9, limit: most / 1e9, times: need / most };
    return say(sentence, { smallest, ...gigabytes, ...values(need) });
  }
  const { flops, inference_tokens, budget, speeds } = limits;
  if (speeds) return say("PAGE_WITHOUT_SPEEDS", { missing: "within these limits", command: speeds.asked.command });
  const inference = INFERENCE_FLOPS * n_active * inference_tokens;
  const need = inference + TRAINING_FLOPS * n_active;
  const share = inference ? say("INFERENCE_SHARE", { inference }) : "";
  return say("FLOPS_TOO_FEW", { smallest, need, share, times: need / flops, limit: flops, budget });
}
