// How fast chips decode with a model and read prompts (fit/planning/serving.py), and limits on the size of models.

import { INFERENCE_FLOPS, activeParameters, embeddingAndHead, servingBytes, totalParameters } from "./counts.js";
import { data } from "./data.js";

/** The peaks of `count` chips of a kind when they serve. @type {(kind: string, count: number) => object} */
export function servingChips(kind, count) {
  const { memory, decoding_bandwidth, products_flops } = data.chips[kind];
  return { kind, count, memory: count * memory, bandwidth: count * decoding_bandwidth, flops: count * products_flops };
}

// Share of the experts to choose from, each as narrow as the shape has them, that a token chooses.
function chosenShare(shape, n_experts) {
  if (n_experts === 1) return 1;
  const chosen = shape.active_width * shape.granularity - shape.shared;
  const routed = shape.counts_routed_experts ? n_experts : n_experts * shape.granularity - shape.shared;
  return chosen / Math.max(routed, chosen);
}

// The fields of a model that serving reads. memory_bytes: of its weights and cache.
function servedModel(shape, { bytes_per_parameter }, { n_experts, n_active, n_total, d_model, memory_bytes }) {
  const lookedUp = d_model * (embeddingAndHead(shape) - shape.vocab_size); // of the embedding a token reads one row
  return {
    active: n_active - lookedUp,
    unused: n_total - n_active,
    share: chosenShare(shape, n_experts),
    bytesPerParameter: bytes_per_parameter,
    cacheBytes: Math.max(0, memory_bytes - bytes_per_parameter * n_total),
  };
}

// The model of a width, as servedModel takes it.
function modelOfWidth(shape, limits, width, n_experts) {
  const n_active = activeParameters(shape, width, n_experts);
  const n_total = totalParameters(shape, width, n_experts);
  return { n_experts, n_active, n_total, d_model: width, memory_bytes: servingBytes(shape, limits, width, n_experts) };
}

// Seconds of a step of decoding: to read the weights that a batch touches and the cache, or to compute, if longer.
function stepSeconds({ active, unused, share, bytesPerParameter, cacheBytes }, batch, { bandwidth, flops }) {
  const alsoTouched = 1 - (1 - share) ** (batch - 1);
  const bytes = bytesPerParameter * (active + unused * alsoTouched) + cacheBytes;
  return Math.max(bytes / bandwidth, (batch * INFERENCE_FLOPS * active) / flops);
}

// The same on the chips that must serve a model.
function secondsOfStep(shape, limits, model) {
  const { batch, chips } = limits.serving;
  return stepSeconds(servedModel(shape, limits, model), batch, chips);
}

/** The limit on memory or serving that a model exceeds; "" where it exceeds none. model: with its memory_bytes.
 *  @type {(shape: Shape, limits: Limits, model: object) => "" | "memory" | "serving"} */
export function exceededLimit(shape, limits, model) {
  const { memory_bytes, serving } = limits;
  if (model.memory_bytes > Math.min(memory_bytes ?? Infinity, serving?.chips.memory ?? Infinity)) return "memory";
  const isTooSlow = serving && secondsOfStep(shape, limits, model) > serving.batch / serving.tokens_per_second;
  return isTooSlow ? "serving" : "";
}

/** How fast the fewest chips that hold a model serve it.
 *  @type {(chips: Chips, row: object, shape: Shape, limits: Limits) => object} */
export function servingOf(chips, row, shape, limits) {
  const rounding = 1 - 1e-12; // a model may be exactly as large as the memory
  const holding = Math.ceil((row.memory_bytes / data.chips[chips.kind].memory) * rounding);
  const count = Math.max(chips.devices, holding);
  const serving = servingChips(chips.kind, count);
  const served = servedModel(shape, limits, row);
  const batches = [...new Set([...data.serving.batches, chips.serve_batch])].sort((a, b) => a - b);
  const decoding = batches.map((batch) => {
    return { batch, decode_tokens_per_second: batch / stepSeconds(served, batch, serving) };
  });
  const prefill_tokens_per_second = serving.flops / (INFERENCE_FLOPS * served.active);
  return { label: data.serving.label, chips: count, decoding, prefill_tokens_per_second };
}

/** The limits on the size of a model beside the budget: {name, most: what there is, needed(width): what a model takes of
 *  it, sentence: if exceeded, values(need): of the sentence}.
 *  @type {(shape: Shape, limits: Limits, n_experts: Experts) => object[]} */
export function sizeLimits(shape, limits, n_experts) {
  const { memory_bytes, serving } = limits;
  const sizes = [];
  function addMemory(most, flag) {
    const needed = (width) => servingBytes(shape, limits, width, n_experts);
    sizes.push({ name: "memory", most, needed, sentence: "MEMORY_TOO_SMALL", values: () => ({ flag }) });
  }
  if (memory_bytes != null) addMemory(memory_bytes, "--memory_gb");
  if (serving == null) return sizes;
  const { tokens_per_second: wanted, batch, chips } = serving;
  addMemory(chips.memory, `--serve=tokens_per_second on ${chips.count} x ${chips.kind}`);
  sizes.push({
    name: "serving",
    most: batch / wanted,
    needed: (width) => secondsOfStep(shape, limits, modelOfWidth(shape, limits, width, n_experts)),
    sentence: "SERVED_TOO_SLOWLY",
    values: (seconds) => ({ wanted, nearest: batch / seconds, batch, kind: chips.kind, count: chips.count }),
  });
  return sizes;
}
