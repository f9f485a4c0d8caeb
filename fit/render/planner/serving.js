// How fast chips decode with a model and read prompts (fit/model/serving.py), and limits on the size of models.

import { INFERENCE_FLOPS, embeddingAndHead } from "./counts.js";
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

// Active parameters of which a token reads all: of the embedding it reads one row.
function parametersRead(shape, { n_active, d_model }) {
  return n_active - d_model * (embeddingAndHead(shape) - shape.vocab_size);
}

// Seconds of a step of decoding: to read the weights that a batch touches and the cache, or to compute, if longer.
function stepSeconds(shape, { bytes_per_parameter }, model, batch, { bandwidth, flops }) {
  const { n_experts, n_active, n_total, memory_bytes } = model;
  const read = parametersRead(shape, model);
  const alsoTouched = 1 - (1 - chosenShare(shape, n_experts)) ** (batch - 1);
  const cache = Math.max(0, memory_bytes - bytes_per_parameter * n_total);
  const bytes = bytes_per_parameter * (read + (n_total - n_active) * alsoTouched) + cache;
  return Math.max(bytes / bandwidth, (batch * INFERENCE_FLOPS * read) / flops);
}

/** How fast the fewest chips that hold a model serve it.
 *  @type {(chips: Chips, row: object, shape: Shape, limits: Limits) => object} */
export function servingOf(chips, row, shape, limits) {
  const rounding = 1 - 1e-12; // a model may be exactly as large as the memory
  const holding = Math.ceil((row.memory_bytes / data.chips[chips.kind].memory) * rounding);
  const count = Math.max(chips.devices, holding);
  const serving = servingChips(chips.kind, count);
  const batches = [...new Set([...data.serving.batches, chips.serve_batch])].sort((a, b) => a - b);
  const decoding = batches.map((batch) => {
    return { batch, decode_tokens_per_second: batch / stepSeconds(shape, limits, row, batch, serving) };
  });
  const prefill_tokens_per_second = serving.flops / (INFERENCE_FLOPS * parametersRead(shape, row));
  return { label: data.serving.label, chips: count, decoding, prefill_tokens_per_second };
}

/** The limits on the size of a model beside the budget: {name, most: what there is, needed(model): what a model takes of
 *  it, sentence: if exceeded, values(need): of the sentence}.
 *  @type {(shape: Shape, limits: Limits) => object[]} */
export function sizeLimits(shape, limits) {
  const sizes = [];
  function addMemory(most, flag) {
    const needed = ({ memory_bytes }) => memory_bytes;
    sizes.push({ name: "memory", most, needed, sentence: "MEMORY_TOO_SMALL", values: () => ({ flag }) });
  }
  const { memory_bytes, serving } = limits;
  if (memory_bytes != null) addMemory(memory_bytes, "--memory_gb");
  if (serving == null) return sizes;
  const { tokens_per_second: wanted, batch, chips } = serving;
  addMemory(chips.memory, `--serve=tokens_per_second on ${chips.count} x ${chips.kind}`);
  sizes.push({
    name: "serving",
    most: batch / wanted,
    needed: (model) => stepSeconds(shape, limits, model, batch, chips),
    sentence: "SERVED_TOO_SLOWLY",
    values: (seconds) => ({ wanted, nearest: batch / seconds, batch, kind: chips.kind, count: chips.count }),
  });
  return sizes;
}

/** The first limit on size that a model exceeds; undefined for none.
 *  @type {(shape: Shape, limits: Limits, model: Model) => object | undefined} */
export function exceededLimit(shape, limits, model) {
  return sizeLimits(shape, limits).find(({ most, needed }) => needed(model) > most);
}
