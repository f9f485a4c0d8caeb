// Parameters, bytes and tokens of a model of any width and number of experts, as fit/model counts them.

import { data } from "./data.js";

export const TRAINING_FLOPS = 6; // of one parameter and token
export const INFERENCE_FLOPS = 2;
export const SECONDS_OF_AN_HOUR = 3600;

/** A shape of these fields; missing ones are those of the paper's models. @type {(fields: object) => Shape} */
export function shapeOf(fields) {
  return { ...data.paper_shape, ...fields };
}

/** Weights of embedding and head per unit of width. @type {(shape: Shape) => number} */
export function embeddingAndHead(shape) {
  return (shape.tied ? 1 : 2) * shape.vocab_size;
}

// Weights of a block's attention, in d_model^2.
function attentionWeights(shape) {
  return 2 * (1 + shape.kv_share) * shape.attention;
}

// How many dense layers' weights a token uses in a layer of this many experts.
function layersUsed(shape, n_experts) {
  return n_experts > 1 ? shape.active_width : 1;
}

// How many dense layers' weights a layer of this many experts has.
function layersStored(shape, n_experts) {
  if (!shape.counts_routed_experts) return n_experts;
  return n_experts > 1 ? (n_experts + shape.shared) / shape.granularity : 1;
}

/** Experts that a token chooses. @type {(shape: Shape) => number} */
export function topK(shape) {
  return Math.round(shape.active_width * shape.granularity) - shape.shared;
}

/** Whether there are as many experts as a token uses. @type {(shape: Shape, n_experts: Experts) => boolean} */
export function hasEnoughExperts(shape, n_experts) {
  if (n_experts === 1) return true;
  return n_experts >= (shape.counts_routed_experts ? topK(shape) : shape.active_width);
}

// Parameters at a width where each layer of experts has the weights of `layers` dense layers.
function parameters(shape, width, layers) {
  const blocks = width / shape.width_per_block;
  const missingInDenseBlocks = 3 * shape.ff * (layers - 1) * Math.min(shape.n_dense, blocks);
  const inBlocks = (attentionWeights(shape) + 3 * shape.ff * layers) * blocks - missingInDenseBlocks;
  return embeddingAndHead(shape) * width + inBlocks * width * width;
}

// Parameters that a token uses.
function activeParameters(shape, width, n_experts) {
  return parameters(shape, width, layersUsed(shape, n_experts));
}

/** A model of a width, with what memory its weights and cache take.
 *  @type {(shape: Shape, limits: Limits, d_model: Width, n_experts: Experts) => Model} */
export function modelOfWidth(shape, limits, d_model, n_experts) {
  const n_active = activeParameters(shape, d_model, n_experts);
  const n_total = parameters(shape, d_model, layersStored(shape, n_experts));
  const cachedOfToken = (2 * shape.kv_share * shape.attention * d_model ** 2) / shape.width_per_block;
  const cache = limits.bytes_per_kv_element * limits.kv_tokens * cachedOfToken;
  return { n_experts, n_active, n_total, d_model, memory_bytes: limits.bytes_per_parameter * n_total + cache };
}

/** The smallest model, which has one block of experts.
 *  @type {(shape: Shape, limits: Limits, n_experts: Experts) => Model} */
export function smallestModel(shape, limits, n_experts) {
  return modelOfWidth(shape, limits, shape.width_per_block * (1 + shape.n_dense), n_experts);
}

/** FLOPs of training. @type {(model: {n_active: Parameters, n_tokens: Tokens}) => Flops} */
export function trainingFlops({ n_active, n_tokens }) {
  return TRAINING_FLOPS * n_active * n_tokens;
}

/** The width at which a model has this many active parameters, by Newton's method from a width that is too large.
 *  @type {(shape: Shape, n_active: Parameters, n_experts: Experts) => Width} */
export function widthOf(shape, n_active, n_experts) {
  const perCube = (attentionWeights(shape) + 3 * shape.ff * layersUsed(shape, n_experts)) / shape.width_per_block;
  let width = Math.min(n_active / embeddingAndHead(shape), Math.cbrt(n_active / perCube));
  for (let step = 0; step < 50; step++) {
    const count = activeParameters(shape, width, n_experts);
    if (Math.abs(count - n_active) < 1e-14 * n_active) break;
    const slope = (activeParameters(shape, width * (1 + 1e-6), n_experts) - count) / (1e-6 * width);
    width -= (count - n_active) / slope;
  }
  return width;
}

/** The columns of a table of runs that do not depend on size. @type {(shape: Shape, n_experts: Experts) => object} */
export function structureColumns(shape, n_experts) {
  const n_used = shape.active_width * shape.granularity;
  const narrow = { n_experts, granularity: shape.granularity, shared_share: shape.shared / n_used };
  if (!shape.counts_routed_experts) {
    return { ...narrow, sparsity: 1 - layersUsed(shape, n_experts) / n_experts, top_k: n_used };
  }
  if (n_experts > 1) return { ...narrow, sparsity: 1 - topK(shape) / n_experts, top_k: topK(shape) };
  return { n_experts, sparsity: 1 - 1 / n_experts, top_k: 1, granularity: 1, shared_share: 0 };
}

/** Whether FLOPs or hours bound size and tokens. @type {(limits: Limits) => boolean} */
export function hasBudget({ flops, speeds }) {
  return flops != null || speeds != null;
}

/** Training tokens that limits leave; may be negative. @type {(limits: Limits, n_active: Parameters) => Tokens} */
export function tokensFor(limits, n_active) {
  const { flops, inference_tokens, max_tokens } = limits;
  const most = max_tokens ?? Infinity;
  if (!hasBudget(limits)) return most;
  const bought = flops / (TRAINING_FLOPS * n_active);
  return Math.min(bought - (INFERENCE_FLOPS / TRAINING_FLOPS) * inference_tokens, most);
}

/** The size that the FLOPs train on these tokens. @type {(limits: Limits, n_tokens: Tokens) => Parameters} */
export function sizeFor({ flops, inference_tokens }, n_tokens) {
  return flops / (TRAINING_FLOPS * n_tokens + INFERENCE_FLOPS * inference_tokens);
}
