// Seconds of a training step, as fit/model/step_cost.py counts them: without a pipeline, with a balanced load and
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

/** Bytes of a token that all blocks leave for the backward pass, on each device of the model axis.
 *  @type {(constants: object, model: GridModel, ofModel: number, remat: string, scores: number) => number} */
export function leftBytes({ left_whole, left_spread, left_scores }, model, ofModel, remat, scores) {
  const { d_model, n_blocks, n_heads, n_kv_heads, head_dim, n_mixtures } = model;
  const hidden = n_mixtures ? (model.d_expert || model.d_ff) * (model.top_k + model.n_shared) : model.d_ff;
  const relative = (2 * (n_heads + n_kv_heads) * head_dim + 3 * hidden) / (13 * d_model); // to the paper's block
  const spread = left_spread[remat] * d_model * relative + left_scores[remat] * scores;
  return n_blocks * (left_whole[remat] * d_model + spread / ofModel);
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
    exchanged: 2 * n_mixtures * d_model * step_time.trips[remat] * top_k,
    scores: isFlash ? 0 : (2 + 2 * recomputed + 7) * n_blocks * model.n_heads * sequence,
    remat,
    sequence: isFlash ? 0 : sequence, // of scores that are kept
    passes: step_time.passes[remat],
    gathers: step_time.gathers[remat],
    hidden,
    heads,
    experts: n_experts * oneExpert,
    dense,
    large: 2 * (3 * (dense + model.routers + d_model * vocab_size) + again),
    grouped: 2 * top_k * oneExpert * (3 + recomputed * (1 - 1 / 3)),
    attention: 2 * products * n_blocks * heads * positions,
    allToAll: step_time.trips[remat] * step_time.bf16 * d_model * top_k * n_mixtures,
    sums: (4 + recomputed * 2) * step_time.bf16 * d_model * n_blocks,
  };
}

// Bytes of main memory that a chip reads or writes in a step.
function memoryTraffic({ step_time }, model, counts, mesh, { tokens, n_devices, n_microbatches }) {
  const { bf16, fp32, update } = step_time;
  const { vocab_size, d_model } = model;
  let units = counts.wholeWidth * mesh.model + counts.spread;
  // a device also sorts what it receives by expert, where it has several
  if (mesh.expert > 1) units += counts.exchanged * (model.n_experts > mesh.expert ? 2 : 1);
  const left = leftBytes(step_time, model, mesh.model, counts.remat, counts.sequence * model.n_heads);
  const saved = left - step_time.left_whole.full * model.n_blocks * d_model;
  const activations = tokens * (bf16 * units + fp32 * counts.scores + step_time.saved * mesh.model * saved);
  const { rows: spread, copies } = spreadOf(model, mesh);
  const dense = counts.dense / mesh.model;
  const atExpert = counts.experts / mesh.expert / mesh.model;
  const gathered = bf16 * counts.gathers;
  let weights = bf16 * counts.passes * (dense + atExpert);
  if (spread > 1) weights += (gathered + 2 * summedBytes(step_time, mesh.data * mesh.expert)) * dense;
  if (mesh.data > 1) weights += (gathered + 2 * summedBytes(step_time, mesh.data)) * atExpert;
  const tokensAtOnce = (tokens * mesh.model) / n_microbatches;
  const rows = Math.max(step_time.logits / (fp32 * vocab_size), 2 * d_model); // whose logits are made at a time
  const n_parts = Math.max(1, tokensAtOnce / rows) * n_microbatches;
  const ofHead = (2 * bf16 + 2 * fp32) * n_parts + 2 * 5 * fp32 * n_microbatches;
  const logits = 4 * fp32 * vocab_size * tokens + (ofHead * d_model * vocab_size) / mesh.model;
  const stored = counts.experts + (counts.dense + model.embedding_and_head) * copies;
  return activations + weights * n_microbatches + logits + (update * stored) / n_devices;
}

// Bytes of a number of a gradient that n devices sum.
function summedBytes({ bf16, fp32, exact_up_to }, n) {
  return n <= exact_up_to ? bf16 : fp32;
}

// Seconds of the products and of main memory.
function secondsOfWork(data, chip, model, counts, mesh, setup) {
  const { tokens, n_microbatches } = setup;
  const { d_model, n_experts, d_ff } = model;
  const { grouped, attention, half_width, memory } = chip.efficiencies;
  const { hidden, heads } = counts;
  const peak = (chip.flops / chip.devices) * chip.products_efficiency;
  const largeWidth = Math.min(d_model, d_ff / mesh.model, heads / mesh.model); // narrowest side of the products
  let seconds = (tokens * counts.large) / ((peak * largeWidth) / (largeWidth + half_width));
  seconds += (tokens * counts.attention) / (peak * attention);
  if (counts.grouped) {
    const rows = (tokens * model.top_k * mesh.expert * mesh.model) / n_microbatches / n_experts; // of an expert
    const width = Math.min(d_model, Math.max(1, hidden / mesh.model), Math.max(1, rows));
    seconds += (tokens * counts.grouped) / ((peak * grouped * width) / (width + half_width));
  }
  return seconds + memoryTraffic(data, model, counts, mesh, setup) / ((chip.bandwidth / chip.devices) * memory);
}

/** How the weights that all tokens use are stored: devices with other rows of them, and devices with the same.
 *  @type {(model: GridModel, mesh: Mesh) => {rows: number, copies: number}} */
export function spreadOf(model, { data, expert }) {
  const both = data * expert;
  return model.d_model % both === 0 ? { rows: both, copies: 1 } : { rows: data, copies: expert };
}

// Numbers that leave a device to look up a microbatch's tokens: of the table, or of slices that devices exchange.
function embeddingNumbers({ step_time }, model, rows, tokens) {
  const head = model.d_model * model.vocab_size;
  const exchanging = Math.min(rows, Math.max(1, model.d_model / step_time.narrowest));
  const slices = model.d_model * tokens * leavingShare(exchanging) + (head / rows) * (rows / exchanging - 1);
  return Math.min(head * leavingShare(rows), slices);
}

/** Bytes that a device sends in a step, by kind. The arguments are those of secondsOfStep, but for the chip.
 *  @type {(data: Data, model: GridModel, counts: TokenCounts, mesh: Mesh, setup: StepSetup) => object} */
export function sentBytes(data, model, counts, mesh, { tokens, n_microbatches }) {
  const { step_time } = data;
  const { bf16 } = step_time;
  const { rows, copies } = spreadOf(model, mesh);
  const atExpert = (counts.experts / (mesh.expert * mesh.model)) * leavingShare(mesh.data);
  const blocks = (counts.dense / mesh.model) * leavingShare(rows);
  const head = model.d_model * model.vocab_size * leavingShare(rows);
  const isTied = model.embedding_and_head === model.d_model * model.vocab_size;
  const tokensOfRow = (tokens * mesh.model) / n_microbatches;
  const table = isTied ? 0 : embeddingNumbers(data, model, rows, tokensOfRow);
  const summed = summedBytes(step_time, mesh.data * mesh.expert);
  const common = (counts.dense + model.embedding_and_head) / mesh.model;
  const gradients = summedBytes(step_time, mesh.data) * atExpert + summed * (blocks + head) + bf16 * table;
  return {
    weights: (counts.gathers * bf16 * (atExpert + blocks) + bf16 * (head + table)) * n_microbatches,
    gradients: gradients * n_microbatches,
    copies: ((2 * summed * common) / rows) * leavingShare(copies) * n_microbatches,
    allToAll: tokens * counts.allToAll * leavingShare(mesh.expert),
    sums: tokens * counts.sums * mesh.model * leavingShare(mesh.model),
  };
}

// Seconds of what is sent and waited for, and of what may hide behind work.
function secondsOfSending(data, chip, model, counts, mesh, setup) {
  const { n_devices } = setup;
  const { weights, gradients, copies, allToAll, sums } = sentBytes(data, model, counts, mesh, setup);
  const fast = (chip.network / chip.devices) * chip.efficiencies.inside;
  const slow = (chip.between / chip.devices) * chip.efficiencies.between;
  const domain = chip.domain * chip.devices;
  const n_domains = Math.max(1, n_devices / domain);
  let crossing = 0; // share of what the data axis exchanges that leaves a device's domain
  if (n_domains > 1 && mesh.data > 1) {
    const group = Math.max(1, Math.min(domain, n_devices) / (mesh.expert * mesh.model));
    crossing = leavingShare(n_domains) / Math.max(leavingShare(mesh.data), 1e-9) / group;
  }
  const between = crossing * (chip.gathers_between ? weights + gradients : 2 * gradients);
  const outside = mesh.expert > 1 ? Math.max(0, 1 - domain / (mesh.expert * mesh.model)) : 0;
  const exposed = (allToAll * (1 - outside)) / fast + (allToAll * outside) / slow + sums / fast;
  return { exposed, hideable: Math.max((weights + gradients + copies) / fast, between / slow) };
}

/** Seconds of a step. counts: of a token; setup: how the chips of the mesh train the model.
 *  @type {(data: Data, chip: object, model: GridModel, counts: TokenCounts, mesh: Mesh, setup: StepSetup) => number} */
export function secondsOfStep(data, chip, model, counts, mesh, setup) {
  const { layer, mixture } = chip.efficiencies;
  const work = secondsOfWork(data, chip, model, counts, mesh, setup);
  const { exposed, hideable } = secondsOfSending(data, chip, model, counts, mesh, setup);
  const hidden = data.step_time.overlap * Math.min(hideable, work);
  const fixed = setup.n_microbatches * (model.n_blocks * layer + model.n_mixtures * mixture);
  return work + exposed + hideable - hidden + fixed;
}
