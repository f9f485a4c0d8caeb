// Parameters, bytes and tokens of a model of any width and number of experts, as fit/shape counts them.
//
// shape: vocab_size, width_per_block, final_norm and the ratios of PAPER_SHAPE: split is the granularity, used the width
// that a token uses in dense layers; trained: E counts the experts of the law's runs, else widths of a dense layer.
// limits: {flops, memory_bytes, bytes_per_parameter, kv_tokens, bytes_per_kv_element, inference_tokens, max_tokens,
// chips, budget}; flops, memory_bytes, max_tokens and chips are null where there is no such limit. budget: the flags
// that gave the FLOPs.

export const TRAINING_FLOPS = 6; // of one parameter and token
export const INFERENCE_FLOPS = 2;

const PAPER_SHAPE = {
  ...{ split: 1, shared: 0, n_dense: 0, kv_share: 1, used: 1 },
  ...{ attention: 1, head_dim: 0, ff: 3, tied: false, trained: false },
};

// A shape of these fields, those of the paper's models where one is missing.
export const shapeOf = (fields) => ({ final_norm: false, ...PAPER_SHAPE, ...fields });

// Weights of embedding and head for each unit of width.
export const endsOf = (shape) => shape.vocab_size * (shape.tied ? 1 : 2);

// Weights of a block's attention, in d^2.
const attentionOf = (shape) => 2 * (1 + shape.kv_share) * shape.attention;

// How many dense layers' weights a token uses in a mixture of e experts.
const usedOf = (shape, e) => (e > 1 ? shape.used : 1);

// How many dense layers' weights there are in a mixture of e experts.
function storedOf(shape, e) {
  if (!shape.trained) return e;
  return e > 1 ? (e + shape.shared) / shape.split : 1;
}

export const topK = (shape) => roundHalfToEven(shape.used * shape.split) - shape.shared;

export const smallestWidth = (shape) => shape.width_per_block * (1 + shape.n_dense);

// Whether there are as many experts as a token uses.
export const hasEnoughExperts = (shape, e) => e === 1 || e >= (shape.trained ? topK(shape) : shape.used);

// Parameters of width d with so many dense layers' weights in each mixture.
function parameters(shape, d, layers) {
  const blocks = d / shape.width_per_block;
  const missingInDenseBlocks = 3 * shape.ff * (layers - 1) * Math.min(shape.n_dense, blocks);
  const inBlocks = (attentionOf(shape) + 3 * shape.ff * layers) * blocks - missingInDenseBlocks;
  return endsOf(shape) * d + inBlocks * d * d;
}
export const activeParameters = (shape, d, e) => parameters(shape, d, usedOf(shape, e));
export const totalParameters = (shape, d, e) => parameters(shape, d, storedOf(shape, e));

// Elements of the key-value cache.
export const cacheElements = (shape, d, tokens) =>
  (shape.kv_share * shape.attention * 2 * tokens * d ** 2) / shape.width_per_block;

// The width at which a model has so many active parameters: by Newton's steps, from a width that is too large.
export function widthOf(shape, size, e) {
  const perCube = (attentionOf(shape) + 3 * shape.ff * usedOf(shape, e)) / shape.width_per_block;
  let d = Math.min(size / endsOf(shape), Math.cbrt(size / perCube));
  for (let step = 0; step < 50; step++) {
    const excess = activeParameters(shape, d, e) - size;
    if (Math.abs(excess) < 1e-14 * size) break;
    const slope = (activeParameters(shape, d * (1 + 1e-6), e) - activeParameters(shape, d, e)) / (1e-6 * d);
    d -= excess / slope;
  }
  return d;
}

// The columns of a mixture that do not depend on its size.
export function structure(shape, e) {
  const n_chosen = shape.used * shape.split;
  const fine = { n_experts: e, granularity: shape.split, shared_share: shape.shared / n_chosen };
  if (!shape.trained) return { ...fine, sparsity: 1 - usedOf(shape, e) / e, top_k: n_chosen };
  if (e > 1) return { ...fine, sparsity: 1 - topK(shape) / e, top_k: topK(shape) };
  return { n_experts: e, sparsity: 1 - 1 / e, top_k: 1, granularity: 1, shared_share: 0 };
}

// Bytes of weights and cache.
export function memoryOf(shape, limits, d, e) {
  const weights = limits.bytes_per_parameter * totalParameters(shape, d, e);
  return weights + limits.bytes_per_kv_element * cacheElements(shape, d, limits.kv_tokens);
}

// Bytes over `count` chips of the smallest step of training so many parameters, as fit/planning/memory.py has it.
// chips: {count, memory of each, and the constants state, remat, at_work, scores, row and group of that file}.
export function trainingBytes(shape, chips, d, n_parameters, count) {
  const fewest_tokens = Math.max(chips.row * count, chips.group);
  return chips.state * n_parameters + bytesOfToken(shape, chips, d) * fewest_tokens;
}

// The same of the model of e experts over all of the chips.
export const trainingBytesAt = (shape, chips, d, e) =>
  trainingBytes(shape, chips, d, totalParameters(shape, d, e), chips.count);

function bytesOfToken(shape, { remat, at_work, scores, row }, d) {
  const blocks = d / shape.width_per_block;
  const heads = blocks;
  const [of_block, of_width, of_scores] = remat.full;
  return (of_block * blocks + of_width * blocks + at_work) * d + (of_scores * blocks + scores) * row * heads;
}

const ROUNDING = 1 - 1e-12; // a model may be exactly as large as the memory

export const countThatHolds = (bytes, each) => Math.ceil((bytes / each) * ROUNDING);

// The fewest chips that hold the training of so many parameters; null where no number does.
export function fewestChips(shape, chips, d, n_parameters) {
  const state = chips.state * n_parameters;
  const token = bytesOfToken(shape, chips, d);
  const free = chips.memory - chips.row * token;
  if (!(free > 0)) return null;
  return Math.max(countThatHolds(state, free), countThatHolds(state + chips.group * token, chips.memory));
}

// Training tokens that the limits leave a model of this size; may be 0 or negative.
export function tokensOf({ flops, inference_tokens, max_tokens }, size) {
  let tokens = Infinity;
  if (flops != null) tokens = flops / (TRAINING_FLOPS * size) - (INFERENCE_FLOPS / TRAINING_FLOPS) * inference_tokens;
  return Math.min(tokens, max_tokens ?? Infinity);
}

// As Python's round().
export const roundHalfToEven = (x) => (Math.abs(x % 1) === 0.5 ? 2 * Math.round(x / 2) : Math.round(x));
