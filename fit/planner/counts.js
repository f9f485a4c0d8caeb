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

// Bytes over `count` chips of the smallest step of training so many parameters; FORMULAS has those of
// fit/planning/memory.py. chips: {count, memory of each, remat and row as there}.
/* global FORMULAS */
export function trainingOf(shape, chips, d, parameters, count) {
  const state = FORMULAS.state_bytes(0, parameters, 0, 1, 1);
  return FORMULAS.device_bytes(state, tokenOf(shape, chips, d), FORMULAS.least_tokens(count, 1), 1, 1);
}
export const leastOf = (shape, { chips }, d, e) => trainingOf(shape, chips, d, total(shape, d, e), chips.count);

// Of these, the bytes of one token.
const tokenOf = (shape, { remat, row }, d) =>
  FORMULAS.token_bytes(remat.full, d, d / shape.width_per_block, d / shape.width_per_block, row, 1);

// The fewest chips that hold the training of so many parameters; null where no number does.
export const holding = (shape, chips, d, parameters) =>
  finite(FORMULAS.fewest(FORMULAS.state_bytes(0, parameters, 0, 1, 1), tokenOf(shape, chips, d), chips.memory, 1));
const finite = (x) => (Number.isFinite(x) ? x : null);

// What a device of a mesh takes to train a buildable model, as fit/planning/cost.py has it.
export function onMesh(shape, chips, built, { expert, model, remat }) {
  const { d_model, n_blocks, n_heads, sequence, exact_parameters, cost } = built;
  const data = chips.count / (expert * model);
  const mixtures = built.n_experts > 1 ? n_blocks - (built.n_dense_blocks ?? 0) : 0;
  const experts = mixtures * 3 * d_model * (built.d_expert || built.d_ff) * (built.routed_experts ?? built.n_experts);
  const ends = endsOf(shape) * d_model;
  const state = FORMULAS.state_bytes(experts, exact_parameters - experts - ends, ends, expert, model);
  const token = FORMULAS.token_bytes(chips.remat[remat], d_model, n_blocks, n_heads, sequence, model);
  const rows = finite(FORMULAS.fewest(state, token, chips.memory, expert));
  const onEach = (n_tokens) => n_tokens && FORMULAS.device_bytes(state, token, n_tokens, data, expert);
  return {
    ...{ data, expert, model, remat },
    least_bytes: onEach(FORMULAS.least_tokens(data, expert)),
    step_bytes: onEach(cost.step_tokens),
    chips: rows && rows * expert * model,
  };
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

// A decoder of whole blocks and heads, d wide, its fields and exact counts; off: the factor by which rounding changed the
// shape's ratios at most. As Model in fit/shape/architecture.py.
export function model(shape, blocks, d, e, sequence) {
  const fields = { d_model: d, n_blocks: blocks, n_heads: Math.floor(d / shape.width_per_block), d_ff: 3 * d };
  fields.vocab_size = shape.vocab_size;
  if (isMixture(shape)) Object.assign(fields, mixtureFields(shape, d, e));
  const { n_heads, n_kv_heads = n_heads, head_dim = shape.width_per_block, d_ff, d_expert = d_ff } = fields;
  const { n_dense_blocks = 0, n_shared_experts = 0, top_k = 1, routed_experts = e } = fields;
  const mixtures = e > 1 ? blocks - n_dense_blocks : 0;
  const attention = 2 * d * head_dim * (n_heads + n_kv_heads);
  const parameters = (experts) =>
    endsOf(shape) * d +
    blocks * attention +
    (blocks - mixtures) * 3 * d * d_ff +
    mixtures * 3 * d * d_expert * (experts + n_shared_experts);
  const [n_active, n_total, router] = [parameters(top_k), parameters(routed_experts), mixtures * d * routed_experts];
  const ratios = [
    d / (blocks * shape.width_per_block),
    n_kv_heads / n_heads / shape.kv_share,
    (n_heads * head_dim) / d / shape.attention,
  ];
  return {
    off: Math.max(...ratios.map((ratio) => Math.max(ratio, 1 / ratio))),
    cache_elements: 2 * n_kv_heads * head_dim * blocks, // of one token
    exact_forward_flops_per_token:
      2 * (n_active - d * (endsOf(shape) - shape.vocab_size) + router) + 4 * blocks * n_heads * head_dim * sequence,
    row: {
      n_experts: e,
      ...fields,
      n_active,
      n_total,
      exact_parameters: n_total + (4 * blocks + shape.final_norm) * d + router,
    },
  };
}

// The trainer's fields beyond the paper's, whole numbers: the nearest that can be built.
function mixtureFields(shape, d, e) {
  const head_dim = shape.head_dim || shape.width_per_block;
  const n_heads = Math.max(1, even((shape.attention * d) / head_dim));
  const far = (n) => Math.abs(Math.log(n / (shape.kv_share * n_heads)));
  let n_kv_heads = 1;
  for (let n = 2; n <= n_heads; n++) if (n_heads % n === 0 && far(n) < far(n_kv_heads)) n_kv_heads = n;
  const fields = { n_heads, n_kv_heads, head_dim, d_ff: even(shape.ff * d), tied_embeddings: shape.tied };
  if (!shape.trained && shape.split !== 1)
    fields.routed_experts = e > 1 ? even(e * shape.split) - shape.shared : 1;
  return {
    ...fields,
    top_k: e > 1 ? topK(shape) : 1,
    d_expert: e > 1 ? Math.max(1, even((shape.ff * d) / shape.split)) : 0,
    n_shared_experts: e > 1 ? shape.shared : 0,
    n_dense_blocks: e > 1 ? shape.n_dense : 0,
  };
}

// The widths that so many blocks may have, of whole heads within `share` of the shape's width per block, and just that.
export function widths(shape, blocks, share) {
  const own = blocks * shape.width_per_block;
  const step = (shape.head_dim || shape.width_per_block) / shape.attention;
  const found = new Set([own]);
  for (let n = Math.ceil(own / (1 + share) / step); n <= Math.floor((own * (1 + share)) / step); n++)
    if (n) found.add(even(n * step));
  return [...found].sort((a, b) => a - b);
}
