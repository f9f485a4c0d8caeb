// What a model of a width and a number of experts counts: parameters, bytes, tokens within a budget, and what a law may
// read of it. Any width d, whole blocks or not. shape: fields of fit/shape/mixture.py by name, those of the paper's models
// where one is missing; given: the fields that were named.

export const TRAINING = 6; // FLOPs of one parameter and token
export const INFERENCE = 2;

const PAPERS = { split: 1, shared: 0, n_dense: 0, kv_share: 1, used: 1 };
const PAPERS_BLOCK = { attention: 1, head_dim: 0, ff: 3, tied: false, trained: false };
const USUAL = { ...PAPERS, ...PAPERS_BLOCK };
export function shapeOf({ vocab_size, width_per_block, final_norm = false, ...given }) {
  const [ends, rest] = [{ vocab_size, width_per_block, final_norm }, { ...USUAL, ...given }];
  const plain = Object.entries(USUAL).every(([name, value]) => rest[name] === value);
  return { ...ends, ...rest, given: plain ? ends : { ...ends, ...rest } };
}
export const isMixture = ({ given }) => "split" in given;

// Weights of embedding and head for each unit of width, and of a block's attention in d^2.
export const endsOf = (shape) => shape.vocab_size * (shape.tied ? 1 : 2);
const attentionOf = (shape) => 2 * (1 + shape.kv_share) * shape.attention;

// How many dense layers' weights a token uses, and how many there are.
const usedOf = (shape, e) => (e > 1 ? shape.used : 1);
const wholeOf = (shape, e) => (!shape.trained ? e : e > 1 ? (e + shape.shared) / shape.split : 1);
export const topK = (shape) => even(shape.used * shape.split) - shape.shared;
export const smallestOf = (shape) => shape.width_per_block * (1 + shape.n_dense);

// Whether a token finds as many experts as it uses.
export const enough = (shape, e) =>
  e === 1 || !isMixture(shape) || e >= (shape.trained ? topK(shape) : shape.used);

// Parameters with so many dense layers' weights in each mixture.
function count(shape, d, experts) {
  const blocks = d / shape.width_per_block;
  const dense = 3 * shape.ff * (experts - 1) * Math.min(shape.n_dense, blocks); // what dense blocks lack
  return endsOf(shape) * d + ((attentionOf(shape) + 3 * shape.ff * experts) * blocks - dense) * d * d;
}
export const active = (shape, d, e) => count(shape, d, usedOf(shape, e));
export const total = (shape, d, e) => count(shape, d, wholeOf(shape, e));

// Elements of the key-value cache.
export const cache = (shape, d, tokens) =>
  (shape.kv_share * shape.attention * 2 * tokens * d ** 2) / shape.width_per_block;

// The width whose active parameters these are: by Cardano's formula; then, with dense blocks, by Newton's steps.
export function widthOf(shape, size, e) {
  const weights = attentionOf(shape) + 3 * shape.ff * usedOf(shape, e);
  const p = (endsOf(shape) * shape.width_per_block) / weights;
  const q = (size * shape.width_per_block) / weights;
  let d = 2 * Math.sqrt(p / 3) * Math.sinh(Math.asinh(((1.5 * q) / p) * Math.sqrt(3 / p)) / 3);
  if (!shape.n_dense || shape.used === 1) return d;
  for (let i = 0; i < 30; i++) {
    const excess = active(shape, d, e) - size;
    const slope = (active(shape, d * (1 + 1e-6), e) - active(shape, d, e)) / (1e-6 * d);
    d -= excess / slope;
    if (Math.abs(excess) < 1e-15 * size) break;
  }
  return d;
}

// What a law may read of a mixture of whatever size.
export function structure(shape, e) {
  const chosen = shape.used * shape.split;
  if (!isMixture(shape)) return { n_experts: e, sparsity: 1 - 1 / e, top_k: 1, granularity: 1, shared_share: 0 };
  const fine = { granularity: shape.split, shared_share: shape.shared / chosen };
  if (!shape.trained) return { n_experts: e, sparsity: 1 - usedOf(shape, e) / e, top_k: chosen, ...fine };
  if (e <= 1) return { n_experts: e, sparsity: 1 - 1 / e, top_k: 1, granularity: 1, shared_share: 0 };
  return { n_experts: e, sparsity: 1 - topK(shape) / e, top_k: topK(shape), ...fine };
}

export const memoryOf = (shape, limits, d, e) =>
  limits.bytes_per_parameter * total(shape, d, e) + limits.bytes_per_kv_element * cache(shape, d, limits.kv_tokens);

// Bytes over `count` chips of the smallest step of training so many parameters, as fit/planning/memory.py estimates them.
// chips: {count, memory of each, and the constants state, remat, at_work, scores, row and group of that file}.
export function trainingOf(shape, chips, d, parameters, count) {
  const least_tokens = Math.max(chips.row * count, chips.group);
  return chips.state * parameters + tokenBytes(shape, chips, d) * least_tokens;
}
export const leastOf = (shape, { chips }, d, e) => trainingOf(shape, chips, d, total(shape, d, e), chips.count);

// Of these, the bytes of one token, in rows of `row` tokens.
function tokenBytes(shape, { remat, at_work, scores, row }, d) {
  const blocks = d / shape.width_per_block;
  const heads = d / shape.width_per_block;
  const [everywhere, of_width, of_scores] = remat.full;
  return (everywhere * blocks + of_width * blocks + at_work) * d + (of_scores * blocks + scores) * row * heads;
}

// The fewest chips that hold the training of so many parameters; null where no number does.
export function holding(shape, chips, d, parameters) {
  const state = chips.state * parameters;
  const token = tokenBytes(shape, chips, d);
  const free = chips.memory - chips.row * token;
  if (!(free > 0)) return null;
  const rounding = 1 - 1e-12; // a model may be as large as the chips' memory
  return Math.ceil(Math.max(state / free, (state + chips.group * token) / chips.memory) * rounding);
}

// The limits of models of e experts: with their own FLOPs, where an MFU by number of experts makes these differ.
export const limitsAt = (limits, e) =>
  limits.flops !== null && typeof limits.flops === "object" ? { ...limits, flops: limits.flops[e] } : limits;

// The limits with `times` as many FLOPs.
export const timesFlops = (limits, times) => ({ ...limits, flops: byExperts(limits.flops, (flops) => times * flops) });

// What `of` makes of a number, or of each one of several by number of experts.
export const byExperts = (value, of) =>
  typeof value === "object" ? Object.fromEntries(Object.entries(value).map(([e, one]) => [e, of(one)])) : of(value);

// The most tokens to train on: those that there are, as often as they may be read; null without a limit.
export const capOf = ({ max_tokens, epochs }) => (max_tokens == null ? null : max_tokens * (epochs || 1));

// Training tokens that the limits leave a model of this size; may be 0 or negative.
export function tokensOf(limits, size) {
  const left =
    limits.flops == null
      ? Infinity
      : limits.flops / (TRAINING * size) - (INFERENCE / TRAINING) * limits.inference_tokens;
  return Math.min(left, capOf(limits) ?? Infinity);
}

// Rounded as Python does it: a half goes to the even number.
export const even = (x) => (Math.abs(x % 1) === 0.5 ? 2 * Math.round(x / 2) : Math.round(x));
