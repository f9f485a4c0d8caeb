// Seconds of a training step, as fit/planning/step_time.py counts them: without a pipeline, with a balanced load and
// a slot for each choice of a token.

// The share of what n devices exchange that leaves a device.
function leavingShare(n) {
  return (n - 1) / n;
}

// Units of a token that attention of a block reads or writes in a step, spread over the model axis.
function attentionUnits(model, heads, recomputed, isFlash) {
  const keys = model.attention / (2 * model.d_model) - heads;
  const projections = (3 + recomputed) * (2 * heads + 2 * keys);
  const turned = 4 * (heads + keys); // halves of queries and keys, turned and joined
  const laidOut = (1 + recomputed) * (2 * (heads + 2 * keys) + turned) + turned; // split into heads, and turned
  const kernel = (1 + recomputed) * (2 * heads + 2 * keys) + 3 * heads + 4 * keys + 2 * heads;
  return projections + laidOut + (isFlash ? kernel : 0);
}

/** What a token takes, whatever the mesh. @type {(data: Data, model: GridModel, recipe: Recipe, remat: string) => TokenCounts} */
export function countsOfToken({ step_time }, model, { sequence, isPublished: isFlash }, remat) {
  const { d_model, d_ff, n_mixtures, n_blocks, n_experts, top_k, vocab_size } = model;
  const { swiglu, swiglu_of_slots } = step_time;
  const recomputed = step_time.passes[remat] - 3; // forward passes that are computed again
  const hidden = n_experts > 1 ? model.d_expert || d_ff : 0;
  const heads = model.n_heads * model.head_dim;
  const oneExpert = n_mixtures * 3 * d_model * hidden; // one in each mixture
  const layers = 3 * d_model * d_ff * (n_blocks - n_mixtures) + model.n_shared * oneExpert;
  const dense = model.attention * n_blocks + layers; // weights of blocks but for routed experts
  const again = recomputed * (dense + model.routers - layers / 3); // of a layer the last product is not needed again
  const products = isFlash ? (2 + 2 * recomputed + 5) / 2 : 2 + 2 * recomputed + 4;
  const positions = isFlash ? sequence + step_time.flash_block : sequence;
  // units that are read or written in main memory: of products and between them
  const n_dense = n_blocks - n_mixtures;
  const ofLayer = 9 + 2 * recomputed; // products of a layer, forward and backward
  const perBlock = 2 * (3 + recomputed) + 22 + 6 * recomputed; // projections, norms and sums with the residual
  const layersOfMixture = top_k + (model.n_shared ? 1 : 0); // shared experts are one layer
  const wholeWidth = d_model * (n_blocks * perBlock + (n_dense + n_mixtures * layersOfMixture) * ofLayer);
  const ofExperts = hidden * (top_k * (ofLayer + swiglu_of_slots) + model.n_shared * (ofLayer + swiglu));
  const dispatched = d_model * ((2 + recomputed) * (1 + top_k) + 9 * top_k);
  const ofAttention = n_blocks * attentionUnits(model, heads, recomputed, isFlash);
  const spread = ofAttention + n_dense * d_ff * (ofLayer + swiglu) + n_mixtures * (ofExperts + dispatched);
  return {
    wholeWidth,
    spread,
    exchanged: 2 * n_mixtures * d_model * step_time.travels[remat] * top_k,
    scores: isFlash ? 0 : (2 + 2 * recomputed + 7) * n_blocks * (heads / 64) * sequence,
    passes: step_time.passes[remat],
    hidden,
    heads,
    experts: n_experts * oneExpert,
    dense,
    large: 2 * (3 * (dense + model.routers + d_model * vocab_size) + again),
    grouped: 2 * top_k * oneExpert * (3 + recomputed * (1 - 1 / 3)),
    attention: 2 * products * n_blocks * heads * positions,
    allToAll: step_time.travels[remat] * step_time.bf16 * d_model * top_k * n_mixtures,
    sums: (4 + recomputed * 2) * step_time.bf16 * d_model * n_blocks,
  };
}

// Bytes of main memory that a chip reads or writes in a step.
function memoryTraffic({ step_time }, model, counts, mesh, { tokens, n_chips, n_microbatches }) {
  const { bf16, fp32, gathers, state_bytes } = step_time;
  const { vocab_size, d_model } = model;
  let units = counts.wholeWidth * mesh.model + counts.spread;
  // a device also sorts what it receives by expert, where it has several
  if (mesh.expert > 1) units += counts.exchanged * (model.n_experts > mesh.expert ? 2 : 1);
  const activations = tokens * (bf16 * units + fp32 * counts.scores);
  const weights = (counts.dense + counts.experts / mesh.expert) / mesh.model;
  let ofWeight = bf16 * counts.passes;
  if (mesh.data > 1) ofWeight += bf16 * gathers + 2 * summedBytes(step_time, mesh.data);
  const tokensAtOnce = (tokens * mesh.model) / n_microbatches;
  const rows = Math.max(step_time.logits / (fp32 * vocab_size), 2 * d_model); // whose logits are made at a time
  const n_parts = Math.max(1, tokensAtOnce / rows) * n_microbatches;
  const ofHead = (2 * bf16 + 2 * fp32) * n_parts + 2 * 5 * fp32 * n_microbatches;
  const logits = 4 * fp32 * vocab_size * tokens + (ofHead * d_model * vocab_size) / mesh.model;
  const stored = counts.experts + (counts.dense + 2 * d_model * vocab_size) * mesh.expert;
  return activations + ofWeight * weights * n_microbatches + logits + (state_bytes * stored) / n_chips;
}

// Bytes of a number of a gradient that n devices sum.
function summedBytes({ bf16, fp32, exact_up_to }, n) {
  return n <= exact_up_to ? bf16 : fp32;
}

// Seconds of the products and of main memory.
function secondsOfWork(data, chip, model, counts, mesh, setup) {
  const { tokens, n_microbatches } = setup;
  const { calibration } = data;
  const { d_model, n_experts, d_ff } = model;
  const { grouped, attention, half_width, memory } = calibration.shared;
  const { hidden, heads } = counts;
  const peak = chip.flops * chip.products_efficiency;
  const largeWidth = Math.min(d_model, d_ff / mesh.model, heads / mesh.model); // narrowest side of the products
  let seconds = (tokens * counts.large) / ((peak * largeWidth) / (largeWidth + half_width));
  seconds += (tokens * counts.attention) / (peak * attention);
  if (counts.grouped) {
    const rows = (tokens * model.top_k * mesh.expert * mesh.model) / n_microbatches / n_experts; // of an expert
    const width = Math.min(d_model, Math.max(1, hidden / mesh.model), Math.max(1, rows));
    seconds += (tokens * counts.grouped) / ((peak * grouped * width) / (width + half_width));
  }
  return seconds + memoryTraffic(data, model, counts, mesh, setup) / (chip.bandwidth * memory);
}

// Seconds of what is sent and waited for, and of what may hide behind work.
function secondsOfSending({ calibration, step_time }, chip, model, counts, mesh, { tokens, n_chips, n_microbatches }) {
  const { bf16, gathers } = step_time;
  const { data, expert } = mesh;
  const fast = chip.network * calibration.shared.inside;
  const slow = chip.between * calibration.shared.between;
  const common = (counts.dense + 2 * model.d_model * model.vocab_size) / mesh.model;
  const gathered = (counts.experts / (expert * mesh.model) + common) * leavingShare(data);
  const weights = gathers * bf16 * gathered * n_microbatches;
  const gradients = summedBytes(step_time, data) * gathered;
  const copies = ((2 * summedBytes(step_time, expert) * common) / data) * leavingShare(expert);
  const n_domains = Math.max(1, n_chips / chip.domain);
  let crossing = 0; // share of what the data axis exchanges that leaves a chip's domain
  if (n_domains > 1 && data > 1) {
    const group = Math.max(1, Math.min(chip.domain, n_chips) / (expert * mesh.model));
    crossing = leavingShare(n_domains) / Math.max(leavingShare(data), 1e-9) / group;
  }
  let between = gradients * crossing * (chip.gathers_between ? 1 : 2);
  if (chip.gathers_between) between += weights * crossing;
  const allToAll = tokens * counts.allToAll * leavingShare(expert);
  const outside = expert > 1 ? Math.max(0, 1 - chip.domain / (expert * mesh.model)) : 0;
  const sums = tokens * counts.sums * mesh.model * leavingShare(mesh.model);
  const exposed = (allToAll * (1 - outside)) / fast + (allToAll * outside) / slow + sums / fast;
  return { exposed, hideable: Math.max((weights + gradients + copies) / fast, between / slow) };
}

/** Seconds of a step. counts: of a token; setup: how the chips of the mesh train the model.
 *  @type {(data: Data, chip: object, model: GridModel, counts: TokenCounts, mesh: Mesh, setup: StepSetup) => number} */
export function secondsOfStep(data, chip, model, counts, mesh, setup) {
  const { layer, mixture } = data.calibration.shared;
  const work = secondsOfWork(data, chip, model, counts, mesh, setup);
  const { exposed, hideable } = secondsOfSending(data, chip, model, counts, mesh, setup);
  const hidden = data.step_time.overlap * Math.min(hideable, work);
  const fixed = setup.n_microbatches * (model.n_blocks * layer + model.n_mixtures * mixture);
  return work + exposed + hideable - hidden + fixed;
}
