// What a model of the paper's shape counts: parameters, bytes, tokens within a budget. Any width d, whole blocks or not.
// shape: {vocab_size, width_per_block, final_norm}; limits as in solve.js.

export const TRAINING = 6; // FLOPs of one parameter and token
export const INFERENCE = 2;

// Parameters (Eq. 12, 11) and elements of the key-value cache.
export const active = (shape, d) => 2 * d * shape.vocab_size + (13 * d ** 3) / shape.width_per_block;
export const total = (shape, d, e) => 2 * d * shape.vocab_size + ((4 + 9 * e) * d ** 3) / shape.width_per_block;
export const cache = (shape, d, tokens) => (2 * tokens * d ** 2) / shape.width_per_block;

// The width whose active parameters these are: the positive root of Eq. 12.
export function widthOf(shape, size) {
  const p = (2 * shape.vocab_size * shape.width_per_block) / 13;
  const q = (size * shape.width_per_block) / 13;
  return 2 * Math.sqrt(p / 3) * Math.sinh(Math.asinh(((1.5 * q) / p) * Math.sqrt(3 / p)) / 3);
}

export const memoryOf = (shape, limits, d, e) =>
  limits.bytes_per_parameter * total(shape, d, e) + limits.bytes_per_kv_element * cache(shape, d, limits.kv_tokens);

// Bytes over `count` chips of the smallest step of training so many parameters. chips: {count, memory of each, state,
// saved, at_work, scores, row, group}, as fit/planning/cost.py has them.
export const trainingOf = (shape, chips, d, parameters, count) =>
  chips.state * parameters + Math.max(chips.row * count, chips.group) * tokenOf(shape, chips, d);
export const leastOf = (shape, { chips }, d, e) => trainingOf(shape, chips, d, total(shape, d, e), chips.count);

// Of these, the bytes of one token.
function tokenOf(shape, { saved, at_work, scores, row }, d) {
  const blocks = d / shape.width_per_block;
  return (saved * blocks + at_work) * d + scores * row * blocks;
}

// The fewest chips that hold the training of so many parameters; null where no number does.
export function holding(shape, chips, d, parameters) {
  const { memory, row, group } = chips;
  const [state, each] = [chips.state * parameters, tokenOf(shape, chips, d)];
  if (memory <= row * each) return null;
  return Math.ceil(Math.max(state / (memory - row * each), (state + group * each) / memory) * (1 - 1e-12));
}

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
