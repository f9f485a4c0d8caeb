// The layout of least time of a model on chips, as fit/planning/mesh.py and step.py choose it.

import { roundHalfToEven } from "./numbers.js";
import { secondsOfStep } from "./step_time.js";

const divisorsKept = new Map(); // by number

function divisorsOf(n) {
  if (divisorsKept.has(n)) return divisorsKept.get(n);
  const small = [];
  for (let k = 1; k * k <= n; k++) if (n % k === 0) small.push(k);
  const divisors = [...new Set([...small, ...small.map((k) => n / k)])].sort((x, y) => x - y);
  divisorsKept.set(n, divisors);
  return divisors;
}

// [number of the model, axis that must divide it], of the fields that the trainer divides.
function dividedNumbers({ mesh }, model, sequence) {
  const kinds = ["all"];
  if (model.n_experts > 1) kinds.push("mixtures");
  if (!model.d_expert || model.n_dense) kinds.push("layers of d_ff");
  const rules = mesh.fields.filter(({ of }) => kinds.includes(of));
  const numbers = { ...model, seq_len: sequence };
  return rules.map(({ field, axes }) => [numbers[field.split(".")[1]], axes[0]]);
}

// All meshes of so many devices that divide the model.
function meshesOf(data, model, sequence, n_devices) {
  const numbers = dividedNumbers(data, model, sequence);
  const meshes = [];
  for (const ofModel of data.mesh.model_axes.filter((axis) => n_devices % axis === 0)) {
    for (const expert of divisorsOf(n_devices / ofModel)) {
      const mesh = { data: n_devices / ofModel / expert, expert, model: ofModel };
      if (numbers.every(([value, axis]) => value % mesh[axis] === 0)) meshes.push(mesh);
    }
  }
  return meshes;
}

// What a step takes on a device of a mesh: its memory with so many tokens at once, and what it sends.
function stepOf({ step, cost }, model, mesh, remat, { sequence, isPublished }) {
  const { d_model, n_blocks, n_heads, n_mixtures, n_experts, vocab_size, top_k } = model;
  const { bf16, fp32 } = step;
  const hiddenOfExpert = model.d_expert || model.d_ff;
  const experts = 3 * d_model * hiddenOfExpert * n_experts * n_mixtures;
  const others = model.n_total - experts - model.embedding_and_head;
  const inBlocks = experts / (mesh.expert * mesh.model) + others / mesh.model;
  const gathered = inBlocks + model.embedding_and_head;
  const stored = gathered / mesh.data;
  const block = others / n_blocks / mesh.model + experts / Math.max(n_mixtures, 1) / (mesh.expert * mesh.model);
  const head = vocab_size * d_model;
  const hidden = n_mixtures ? hiddenOfExpert * (top_k + model.n_shared) : model.d_ff;
  const units = 2 * (n_heads + model.n_kv_heads) * model.head_dim;
  const relative = (units + 3 * hidden) / (13 * d_model); // to the paper's block
  const [whole, spread, ofScores] = cost.remat[remat];
  let kept = spread * n_blocks * d_model * relative;
  let atWork = cost.at_work * d_model * Math.max(relative, 1);
  if (!isPublished) {
    kept += ofScores * n_blocks * sequence * n_heads;
    atWork += cost.scores * sequence * n_heads;
  }
  kept = whole * n_blocks * d_model + kept / mesh.model;
  atWork = atWork / mesh.model + (n_mixtures ? 2 * bf16 * top_k * d_model : 0);

  function deviceBytes(tokensAtOnce, isInParts) {
    const tokens = tokensAtOnce / (mesh.data * mesh.expert);
    const rowsOfLogits = Math.min(tokens, Math.max(step.logits / (fp32 * vocab_size), 2 * d_model));
    const inBlock = atWork * tokens + (bf16 + fp32) * block;
    const inLoss = fp32 * rowsOfLogits * vocab_size + (bf16 + fp32) * head;
    const state = isInParts ? step.state + step.accumulated : step.state;
    return state * stored + kept * tokens + Math.max(inBlock, inLoss);
  }

  function sentBytes(batch, tokensAtOnce) {
    const tokens = batch / (mesh.data * mesh.expert);
    const passes = step.passes[remat];
    const leaving = (n) => (n - 1) / n;
    const ofWeight = step.gathers[remat] * bf16 + fp32;
    const weights = (ofWeight * gathered * leaving(mesh.data) * batch) / tokensAtOnce;
    const ofCopies = others / mesh.model + model.embedding_and_head;
    const copies = ((2 * fp32 * ofCopies) / mesh.data) * leaving(mesh.expert);
    const allToAll = 2 * passes * bf16 * top_k * d_model * n_mixtures * tokens * leaving(mesh.expert);
    return weights + copies + allToAll + 4 * passes * bf16 * d_model * n_blocks * tokens * leaving(mesh.model);
  }
  return { deviceBytes, sentBytes };
}

// Tokens of a group, in whole rows: as many as the recipe asks for, or those that the first batch leaves each device.
function groupTokens({ sequence, batches, group_tokens }, n_rows) {
  const ofDevice = Math.floor(batches[0] / n_rows);
  const rows = Math.max(1, Math.floor(Math.min(group_tokens, ofDevice) / sequence));
  return sequence * 2 ** Math.floor(Math.log2(rows));
}

// Batches that are multiples of a unit and of the first one, none smaller than the previous one: [first, last].
function roundedBatches(batches, unit) {
  const first = unit * Math.max(1, roundHalfToEven(batches[0] / unit));
  let last = first;
  for (const batch of batches.slice(1)) last = Math.max(last, first * Math.max(1, roundHalfToEven(batch / first)));
  return [first, last];
}

// The most tokens at once that devices of `limit` bytes hold, and what that takes; null where they hold none.
function mostTokensAtOnce(step, first, last, unit, limit) {
  let bytes = step.deviceBytes(last, false);
  if (bytes <= limit) return { tokens: last, bytes };
  const parts = divisorsOf(first / unit);
  for (let i = parts.length - 1; i >= 0; i--) {
    const tokens = unit * parts[i];
    bytes = step.deviceBytes(tokens, tokens !== last);
    if (bytes <= limit) return { tokens, bytes };
  }
  return null;
}

// Whether the first of these costs, compared one by one, is the lower.
function isCheaper(cost, than) {
  const at = cost.findIndex((value, i) => value !== than[i]);
  return at >= 0 && cost[at] < than[at];
}

/** The layout of least time, with its tokens per second of all chips; null where the chips cannot train the model.
 *  @type {(data: Data, chips: Chips, model: GridModel, recipe: Recipe) => ?Layout} */
export function fastestLayout(data, { kind, count }, model, recipe) {
  const chip = data.chips[kind];
  const { room, state, remat: remats } = data.cost;
  if (state * model.exact_parameters > count * chip.memory * room) return null;
  const { sequence, batches, isPublished } = recipe;
  const limit = (room * chip.memory) / chip.devices;
  let best = null;
  for (const mesh of meshesOf(data, model, sequence, count * chip.devices)) {
    const n_rows = mesh.data * mesh.expert;
    const unit = n_rows * Math.max(sequence, groupTokens(recipe, n_rows));
    const [first, last] = roundedBatches(batches, unit);
    const tokens = last / count;
    for (const remat of Object.keys(remats)) {
      const step = stepOf(data, model, mesh, remat, recipe);
      const atOnce = mostTokensAtOnce(step, first, last, unit, limit);
      if (atOnce == null) continue;
      const n_microbatches = Math.max(1, last / atOnce.tokens);
      const recomputed = data.step_time.passes[remat] - 3;
      const training = { sequence, flash: isPublished, n_chips: count, remat, tokens, n_microbatches, recomputed };
      const tokens_per_second = last / secondsOfStep(data, chip, model, mesh, training);
      const cost = [1 / tokens_per_second, step.sentBytes(last, atOnce.tokens), atOnce.bytes];
      if (best && !isCheaper(cost, best.cost)) continue;
      const microbatch_tokens = atOnce.tokens === last ? 0 : atOnce.tokens;
      best = { mesh, remat, microbatch_tokens, batch_tokens: last, tokens_per_second, cost };
    }
  }
  return best;
}
