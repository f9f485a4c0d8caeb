// Seconds of a training step, as fit/planning/step_time.py counts them: without a pipeline, with a balanced load and
// a slot for each choice of a token.

// The share of what n devices exchange that leaves a device.
function leavingShare(n) {
  return (n - 1) / n;
}

/** What a token takes, whatever the mesh. @type {(data: Data, model: GridModel, recipe: Recipe, remat: string) => TokenCounts} */
export function countsOfToken({ step_time }, model, { sequence, isPublished: isFlash }, remat) {
  const { d_model, d_ff, n_mixtures, n_blocks, n_experts, top_k, vocab_size } = model;
  const { bf16, fp32, touches } = step_time;
  const recomputed = step_time.passes[remat] - 3; // forward passes that are computed again
  const hidden = n_experts > 1 ? model.d_expert || d_ff : 0;
  const heads = model.n_heads * model.head_dim;
  const oneExpert = n_mixtures * 3 * d_model * hidden; // one in each mixture
  const layers = 3 * d_model * d_ff * (n_blocks - n_mixtures) + model.n_shared * oneExpert;
  const dense = model.attention * n_blocks + layers; // weights of blocks but for routed experts
  const again = recomputed * (dense + model.routers - layers / 3); // of a layer the last product is not needed again
  const products = isFlash ? (2 + 2 * recomputed + 5) / 2 : 2 + 2 * recomputed + 4;
  const positions = isFlash ? sequence + step_time.flash_block : sequence;
  let units = n_blocks * (4 * d_model + 2 * heads) + (n_blocks - n_mixtures) * 3 * d_ff;
  units += n_mixtures * 3 * hidden * (top_k + model.n_shared) + n_mixtures * top_k * d_model * 3;
  let activations = touches * bf16 * units * (1 + recomputed / 3);
  if (!isFlash) activations += touches * fp32 * n_blocks * (heads / 64) * sequence;
  return {
    hidden,
    heads,
    experts: n_experts * oneExpert,
    dense,
    large: 2 * (3 * (dense + model.routers + d_model * vocab_size) + again),
    grouped: 2 * top_k * oneExpert * (3 + recomputed * (1 - 1 / 3)),
    attention: 2 * products * n_blocks * heads * positions,
    memory: activations + 6 * fp32 * vocab_size,
    allToAll: step_time.travels[remat] * bf16 * d_model * top_k * n_mixtures,
    sums: (4 + recomputed * 2) * bf16 * d_model * n_blocks,
  };
}

// Seconds of the products and of main memory.
function secondsOfWork({ calibration, step_time }, chip, model, counts, mesh, { tokens, n_chips, n_microbatches }) {
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
  const n_parameters = counts.dense + counts.experts + 2 * d_model * model.vocab_size;
  const bytes = tokens * counts.memory + (step_time.state_bytes * n_parameters) / n_chips;
  return seconds + bytes / (chip.bandwidth * memory);
}

// Seconds of what is sent and waited for, and of what may hide behind work.
function secondsOfSending({ calibration, step_time }, chip, model, counts, mesh, { tokens, n_chips, n_microbatches }) {
  const { bf16, fp32, exact_up_to, gathers } = step_time;
  const { data, expert } = mesh;
  const fast = chip.network * calibration.shared.inside;
  const slow = chip.between * calibration.shared.between;
  const common = (counts.dense + 2 * model.d_model * model.vocab_size) / mesh.model;
  const gathered = (counts.experts / (expert * mesh.model) + common) * leavingShare(data);
  const weights = gathers * bf16 * gathered * n_microbatches;
  const gradients = (data <= exact_up_to ? bf16 : fp32) * gathered;
  const copies = ((2 * (expert <= exact_up_to ? bf16 : fp32) * common) / data) * leavingShare(expert);
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
