// The layout of least time of a model on chips, as fit/planning/mesh.py chooses it.

import { roundHalfToEven } from "./numbers.js";
import { countsOfToken, leftBytes, secondsOfStep, sentBytes, spreadOf } from "./step_time.js";

const divisorsKept = new Map(); // by number

function divisorsOf(n) {
  if (divisorsKept.has(n)) return divisorsKept.get(n);
  const small = [];
  for (let k = 1; k * k <= n; k++) if (n % k === 0) small.push(k);
  const divisors = [...new Set([...small, ...small.map((k) => n / k)])].sort((x, y) => x - y);
  divisorsKept.set(n, divisors);
  return divisors;
}

function greatestCommonDivisor(a, b) {
  return b === 0 ? a : greatestCommonDivisor(b, a % b);
}

// For each axis the number of which its size must be a divisor; 0 is a multiple of all sizes.
function multiplesOfAxes({ mesh }, model, sequence) {
  const kinds = ["all"];
  if (model.n_experts > 1) kinds.push("mixtures");
  if (!model.d_expert || model.n_dense) kinds.push("layers of d_ff");
  const numbers = { ...model, seq_len: sequence };
  const multiples = { data: 0, expert: 0, model: 0 };
  for (const { field, axes, of } of mesh.fields) {
    const [axis] = axes;
    if (kinds.includes(of)) multiples[axis] = greatestCommonDivisor(numbers[field.split(".")[1]], multiples[axis]);
  }
  return multiples;
}

// All meshes of so many devices that divide the model.
function meshesOf(data, model, sequence, n_devices) {
  const multiples = multiplesOfAxes(data, model, sequence);
  const meshes = [];
  for (const ofModel of data.mesh.model_axes) {
    if (n_devices % ofModel || multiples.model % ofModel) continue;
    for (const expert of divisorsOf(n_devices / ofModel)) {
      const ofData = n_devices / ofModel / expert;
      const isDivided = multiples.expert % expert === 0 && multiples.data % ofData === 0;
      if (isDivided) meshes.push({ data: ofData, expert, model: ofModel });
    }
  }
  return meshes;
}

// Parameters that a device of a mesh keeps, and those of a block that it gathers to work with.
function parametersOn(model, mesh) {
  const { d_model, n_blocks, n_mixtures, embedding_and_head } = model;
  const experts = 3 * d_model * (model.d_expert || model.d_ff) * model.n_experts * n_mixtures;
  const others = model.n_total - experts - embedding_and_head;
  const spread = mesh.expert * mesh.model;
  const stored = experts / spread / mesh.data + (others / mesh.model + embedding_and_head) / spreadOf(model, mesh).rows;
  const block = others / n_blocks / mesh.model + experts / Math.max(n_mixtures, 1) / spread;
  const gathered = others / mesh.model + experts / spread;
  return { stored, block, gathered, head: model.vocab_size * d_model };
}

// Bytes of a token on each device of its row of the mesh: those that blocks keep, and those of the block at work.
function bytesOfToken({ step_time }, model, ofModel, remat, { sequence, isPublished: isFlash }) {
  const { d_model, n_heads, n_mixtures, head_dim } = model;
  const hiddenOfExpert = model.d_expert || model.d_ff;
  const hidden = n_mixtures ? hiddenOfExpert * model.n_shared : model.d_ff;
  const rows = n_mixtures ? model.top_k : 0;
  const scores = isFlash ? 0 : sequence * n_heads;
  let atWork = step_time.heads_at_work * (n_heads + model.n_kv_heads) * head_dim + step_time.hidden_at_work * hidden;
  atWork += step_time.expert_at_work * rows * hiddenOfExpert + step_time.scores_at_work * scores;
  const ofWidth = (step_time.width_at_work + step_time.row_at_work * rows) * d_model;
  return { kept: leftBytes(step_time, model, ofModel, remat, scores), atWork: ofWidth + atWork / ofModel };
}

// Memory of a device in a step of so many tokens on each row of the mesh. isInParts: whether they are a part of a batch.
function deviceBytes({ step_time }, model, { stored, block, gatheredOnce, head }, { kept, atWork }, tokens, isInParts) {
  const { bf16, fp32, kept: state, accumulated, logits } = step_time;
  const { d_model, vocab_size } = model;
  const rowsOfLogits = Math.min(tokens, Math.max(logits / (fp32 * vocab_size), 2 * d_model));
  const inBlock = atWork * tokens + bf16 * block;
  const inLoss = fp32 * rowsOfLogits * vocab_size + (bf16 + fp32) * head;
  return (isInParts ? state + accumulated : state) * stored + (kept * tokens + bf16 * gatheredOnce) + Math.max(inBlock, inLoss);
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

/** The layout of least time, with its tokens per second of all chips; null where the chips cannot train the model.
 *  @type {(data: Data, chips: Chips, model: GridModel, recipe: Recipe) => ?Layout} */
export function fastestLayout(data, { kind, count }, model, recipe) {
  const chip = data.chips[kind];
  const { room, state, remat: remats } = data.cost;
  if (state * model.exact_parameters > count * chip.memory * room) return null;
  const n_devices = count * chip.devices;
  const limit = (room * chip.memory) / chip.devices;
  const countsByRemat = Object.keys(remats).map((remat) => [remat, countsOfToken(data, model, recipe, remat)]);
  let best = null;
  for (const mesh of meshesOf(data, model, recipe.sequence, n_devices)) {
    const n_rows = mesh.data * mesh.expert;
    const unit = n_rows * Math.max(recipe.sequence, groupTokens(recipe, n_rows));
    const [first, last] = roundedBatches(recipe.batches, unit);
    const parameters = parametersOn(model, mesh);
    for (const [remat, counts] of countsByRemat) {
      const bytes = bytesOfToken(data, model, mesh.model, remat, recipe);
      const gatheredOnce = data.step_time.gathers[remat] === 1 ? parameters.gathered : 0; // and left
      const weights = { ...parameters, gatheredOnce };
      const bytesWith = (tokens) => deviceBytes(data, model, weights, bytes, tokens / n_rows, tokens !== last);
      const atOnce = mostTokensAtOnce(bytesWith, first, last, unit, limit);
      if (atOnce === 0) continue;
      const n_microbatches = Math.max(1, last / atOnce);
      const setup = { tokens: last / n_devices, n_devices, n_microbatches };
      const tokens_per_second = last / secondsOfStep(data, chip, model, counts, mesh, setup);
      const slowness = 1 / tokens_per_second;
      if (best && slowness > best.cost[0]) continue;
      const sent = sentBytes(data, model, counts, mesh, setup);
      const sent_bytes = sent.weights + sent.gradients + sent.copies + (sent.allToAll + sent.sums);
      const cost = [slowness, sent_bytes, bytesWith(atOnce)];
      if (best && !isCheaper(cost, best.cost)) continue;
      const microbatch_tokens = atOnce === last ? 0 : atOnce;
      best = { mesh, remat, microbatch_tokens, batch_tokens: last, tokens_per_second, cost };
    }
  }
  return best;
}

// The most tokens at once whose bytes are within the limit: the last batch, or a part of the first; 0 where none are.
function mostTokensAtOnce(bytesWith, first, last, unit, limit) {
  if (bytesWith(last) <= limit) return last;
  if (bytesWith(unit) > limit) return 0; // the least part
  const parts = divisorsOf(first / unit);
  for (let i = parts.length - 1; i >= 0; i--) {
    if (bytesWith(unit * parts[i]) <= limit) return unit * parts[i];
  }
  return 0;
}

// Whether the first of these costs, compared one by one, is the lower.
function isCheaper(cost, than) {
  const at = cost.findIndex((value, i) => value !== than[i]);
  return at >= 0 && cost[at] < than[at];
}
