// Seconds of a training step, as fit/planning/step_time.py counts them: without a pipeline, with a balanced load and
// a slot for each choice of a token.

// The share of what n devices exchange that leaves a device.
function leavingShare(n) {
  return (n - 1) / n;
}

// FLOPs of a chip in a step: {large, grouped, attention} products, and the narrowest sides of the first two.
function productsOf({ step_time }, model, mesh, setup) {
  const { d_model, d_ff, n_mixtures, n_blocks, n_experts, top_k } = model;
  const { tokens, recomputed } = setup;
  const hidden = n_experts > 1 ? model.d_expert || d_ff : 0;
  const oneExpert = n_mixtures * 3 * d_model * hidden; // one in each mixture
  const layers = 3 * d_model * d_ff * (n_blocks - n_mixtures) + model.n_shared * oneExpert;
  const dense = model.attention * n_blocks + layers;
  const again = recomputed * (dense + model.routers - layers / 3);
  const large = 2 * tokens * (3 * (dense + model.routers + d_model * model.vocab_size) + again);
  const grouped = 2 * tokens * top_k * oneExpert * (3 + recomputed * (1 - 1 / 3));
  const products = setup.flash ? (2 + 2 * recomputed + 5) / 2 : 2 + 2 * recomputed + 4;
  const positions = setup.flash ? setup.sequence + step_time.flash_block : setup.sequence;
  const heads = model.n_heads * model.head_dim;
  const attention = 2 * products * tokens * n_blocks * heads * positions;
  const largeWidth = Math.min(d_model, d_ff / mesh.model, heads / mesh.model);
  const rows = (tokens * top_k * mesh.expert * mesh.model) / setup.n_microbatches / n_experts; // of an expert
  const groupedWidth = Math.min(d_model, Math.max(1, hidden / mesh.model), Math.max(1, rows));
  return { large, grouped, attention, largeWidth, groupedWidth, dense, hidden, heads, oneExpert };
}

// Bytes of main memory that a chip reads or writes outside products in a step.
function memoryTraffic({ step_time }, model, setup, { dense, hidden, heads, oneExpert }) {
  const { d_model, n_blocks, n_mixtures, n_experts, top_k } = model;
  const { bf16, fp32, touches, state_bytes } = step_time;
  let units = n_blocks * (4 * d_model + 2 * heads) + (n_blocks - n_mixtures) * 3 * model.d_ff;
  units += n_mixtures * 3 * hidden * (top_k + model.n_shared) + n_mixtures * top_k * d_model * 3;
  let activations = touches * bf16 * units * (1 + setup.recomputed / 3);
  if (!setup.flash) activations += touches * fp32 * n_blocks * (heads / 64) * setup.sequence;
  const logits = 6 * fp32 * model.vocab_size;
  const n_parameters = dense + n_experts * oneExpert + 2 * d_model * model.vocab_size;
  return setup.tokens * (activations + logits) + (state_bytes * n_parameters) / setup.n_chips;
}

// Bytes that leave a chip in a step, by what they are.
function trafficOf({ step_time }, chip, model, mesh, setup, { dense, oneExpert }) {
  const { bf16, fp32, exact_up_to, gathers, travels } = step_time;
  const { data, expert } = mesh;
  const { n_chips, tokens, recomputed, n_microbatches } = setup;
  const { d_model } = model;
  const summed = (n) => (n <= exact_up_to ? bf16 : fp32);
  const common = (dense + 2 * d_model * model.vocab_size) / mesh.model;
  const gathered = ((model.n_experts * oneExpert) / (expert * mesh.model) + common) * leavingShare(data);
  const weights = gathers * bf16 * gathered * n_microbatches;
  const gradients = summed(data) * gathered;
  const copies = ((2 * summed(expert) * common) / data) * leavingShare(expert);
  const rowBytes = travels[setup.remat] * bf16 * d_model;
  const allToAll = rowBytes * tokens * model.top_k * model.n_mixtures * leavingShare(expert);
  const activations = (4 + recomputed * 2) * bf16 * d_model * tokens;
  const sums = activations * mesh.model * model.n_blocks * leavingShare(mesh.model);
  const n_domains = Math.max(1, n_chips / chip.domain);
  let crossing = 0; // share of what the data axis exchanges that leaves a chip's domain
  if (n_domains > 1 && data > 1) {
    const group = Math.max(1, Math.min(chip.domain, n_chips) / (expert * mesh.model));
    crossing = leavingShare(n_domains) / Math.max(leavingShare(data), 1e-9) / group;
  }
  let between = gradients * crossing * (chip.gathers_between ? 1 : 2);
  if (chip.gathers_between) between += weights * crossing;
  const outside = expert > 1 ? Math.max(0, 1 - chip.domain / (expert * mesh.model)) : 0;
  return { inside: weights + gradients + copies, allToAll, outside, sums, between };
}

/** Seconds of a step. setup: how the chips of the mesh train the model.
 *  @type {(data: Data, chip: object, model: GridModel, mesh: Mesh, setup: StepSetup) => number} */
export function secondsOfStep(data, chip, model, mesh, setup) {
  const { shared } = data.calibration;
  const products = productsOf(data, model, mesh, setup);
  const traffic = trafficOf(data, chip, model, mesh, setup, products);
  const peak = chip.flops * chip.products_efficiency;
  const ofWidth = (width) => width / (width + shared.half_width);
  let work = products.large / (peak * ofWidth(products.largeWidth));
  work += products.attention / (peak * shared.attention);
  if (products.grouped) work += products.grouped / (peak * shared.grouped * ofWidth(products.groupedWidth));
  work += memoryTraffic(data, model, setup, products) / (chip.bandwidth * shared.memory);
  const fast = chip.network * shared.inside;
  const slow = chip.between * shared.between;
  const { allToAll, outside } = traffic;
  const exposed = (allToAll * (1 - outside)) / fast + (allToAll * outside) / slow + traffic.sums / fast;
  const sending = Math.max(traffic.inside / fast, traffic.between / slow);
  const hidden = data.step_time.overlap * Math.min(sending, work);
  const layers = model.n_blocks * setup.n_microbatches;
  const mixtures = (layers * model.n_mixtures) / model.n_blocks;
  return work + exposed + sending - hidden + layers * shared.layer + mixtures * shared.mixture;
}
