// Models whose widths, heads and experts hardware likes, as fit/shape/hardware.py has them.

import { activeParameters, topK } from "./counts.js";
import { roundHalfToEven } from "./numbers.js";

// The nearest multiple of a divisor, at least the divisor.
function multipleOf(value, divisor) {
  return divisor * Math.max(1, roundHalfToEven(value / divisor));
}

// The shape with a vocabulary that is a multiple of the tile, unless that is much larger.
function paddedShape({ grid }, shape) {
  const wide = grid.tile * Math.ceil(shape.vocab_size / grid.tile);
  return wide <= shape.vocab_size * (1 + grid.most_padding) ? { ...shape, vocab_size: wide } : shape;
}

/** The number of experts of the trainer near n_experts of the law that devices share evenly.
 *  @type {(shape: Shape, n_experts: Experts) => number} */
export function routedExpertsOnGrid(shape, n_experts) {
  if (n_experts <= 1) return 1;
  const routed = shape.trained ? n_experts : n_experts * shape.split - shape.shared;
  const isEven = Number.isInteger(Math.log2(routed)) || routed % 8 === 0;
  if (isEven && Number.isInteger(routed)) return routed;
  const power = Math.log2(routed);
  const near = [2 ** Math.floor(power), 2 ** Math.ceil(power), 8 * Math.floor(routed / 8), 8 * Math.ceil(routed / 8)];
  const possible = near.filter((count) => count >= Math.max(2, topK(shape))).sort((a, b) => a - b);
  const ofLaw = (count) => (shape.trained ? count : (count + shape.shared) / shape.split);
  const distance = (count) => Math.abs(Math.log(ofLaw(count) / n_experts));
  return possible.reduce((best, count) => (distance(count) < distance(best) ? count : best));
}

// How models are shaped: units of a head and heads of keys (0 for those of the width), width per block.
function styleOf({ grid }, shape, isPublished, { fixesWidthPerBlock, fixesKeyHeads }) {
  const { head_dim, width_per_block } = shape;
  if (!isPublished) {
    return { head_dim: head_dim || (fixesWidthPerBlock ? 0 : width_per_block), kv_heads: 0, aspect: width_per_block };
  }
  const kv_heads = shape.kv_share === 1 && !fixesKeyHeads ? grid.kv_heads : 0;
  return { head_dim, kv_heads, aspect: fixesWidthPerBlock ? width_per_block : grid.typical_aspect };
}

// Heads of keys and values: of the style, or the divisor of the heads nearest to the shape's share.
function keyHeads(shape, style, heads) {
  if (style.kv_heads) return heads > style.kv_heads && heads % style.kv_heads === 0 ? style.kv_heads : heads;
  let nearest = 1;
  const distance = (count) => Math.abs(Math.log(count / (shape.kv_share * heads)));
  for (let count = 2; count <= heads; count++) {
    if (heads % count === 0 && distance(count) < distance(nearest)) nearest = count;
  }
  return nearest;
}

// The model of a width, depth and number of experts, with the counts of Model of fit/shape/architecture.py.
function builtModel({ grid }, shape, style, d_model, n_blocks, n_experts) {
  const { tile, wide, heads: headsOfWide } = grid;
  const { vocab_size, tied, split } = shape;
  const isMixture = n_experts > 1;
  const head_dim = style.head_dim || (d_model >= wide ? tile : tile / 2);
  let n_heads = multipleOf(shape.attention * d_model, head_dim) / head_dim;
  if (d_model > wide) n_heads = multipleOf(n_heads, headsOfWide);
  const n_kv_heads = keyHeads(shape, style, n_heads);
  const d_ff = multipleOf(shape.ff * d_model, tile);
  const d_expert = isMixture && split !== 1 ? multipleOf((shape.ff * d_model) / split, tile) : 0;
  const top_k = isMixture ? topK(shape) : 1;
  const n_shared = isMixture ? shape.shared : 0;
  const n_dense = isMixture ? shape.n_dense : 0;
  const n_mixtures = isMixture ? n_blocks - n_dense : 0;
  const attention = 2 * d_model * head_dim * (n_heads + n_kv_heads);
  const embedding_and_head = (tied ? 1 : 2) * vocab_size * d_model;
  const outside = (n_blocks - n_mixtures) * 3 * d_model * d_ff + embedding_and_head + n_blocks * attention;
  const oneExpert = n_mixtures * 3 * d_model * (d_expert || d_ff); // one in each mixture
  const n_total = outside + oneExpert * (n_experts + n_shared);
  const routers = n_mixtures * d_model * n_experts;
  return {
    d_model,
    n_blocks,
    n_heads,
    n_kv_heads,
    head_dim,
    d_ff,
    vocab_size,
    tied,
    n_experts,
    top_k,
    d_expert,
    n_shared,
    n_dense,
    n_mixtures,
    attention,
    embedding_and_head,
    n_active: outside + oneExpert * (top_k + n_shared),
    n_total,
    routers,
    exact_parameters: n_total + routers + (4 * n_blocks + (shape.final_norm ? 1 : 0)) * d_model,
  };
}

/** The model of a width, shaped as published models where its recipe is theirs. n_experts: of the trainer.
 *  @type {(data: Data, question: Timing, width: Width, n_experts: number,
 *  recipeOfModel: (model: GridModel) => Recipe) => GridModel} */
export function gridModel(data, { law, shape, building }, width, n_experts, recipeOfModel) {
  const padded = paddedShape(data, shape);
  const [, most] = law.ranges.n_active ?? [0, 0];
  const isBeyond = building.isFamily || activeParameters(padded, width, n_experts) > most;
  for (const isPublished of [isBeyond, !isBeyond]) {
    const style = styleOf(data, shape, isPublished, building);
    const n_blocks = Math.max(roundHalfToEven(width / style.aspect), shape.n_dense + 1);
    const model = builtModel(data, padded, style, width, n_blocks, n_experts);
    if (recipeOfModel(model).isPublished === isPublished || isPublished !== isBeyond) return model;
  }
}
