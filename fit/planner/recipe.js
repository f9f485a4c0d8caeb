// How a planned model is trained, as far as its speed depends on it: rows and batches (fit/planning/recipe.py).

import { exceedsRuns } from "./law.js";

// Parameters outside embedding and head, and FLOPs of a token outside them, as laws of the batch count them.
function countsOfBatchLaws({ recipe }, model) {
  const { d_model, vocab_size, n_active, n_total, n_blocks, n_heads, head_dim, embedding_and_head } = model;
  const head = d_model * vocab_size;
  const lookedUp = embedding_and_head - head;
  const units = n_blocks * n_heads * head_dim;
  const forward = 2 * (n_active - lookedUp + model.routers) + 4 * units * recipe.pretrain_sequence;
  return { active: n_active - embedding_and_head, N: n_total - embedding_and_head, C: 3 * (forward - 2 * head) };
}

// The geometric mean of the published laws' batches, in tokens.
function publishedBatch({ recipe }, model, { N, C }, n_tokens) {
  const kind = model.n_experts > 1 ? "mixture" : "dense";
  const columns = { N, D: n_tokens, C: C * n_tokens };
  const logs = recipe.batches.filter(({ kinds }) => kinds.includes(kind)).map(({ batch: [constant, exponents] }) => {
    const terms = Object.entries(exponents).map(([name, exponent]) => exponent * Math.log(columns[name]));
    return terms.reduce((sum, term) => sum + term, Math.log(constant));
  });
  return Math.exp(logs.reduce((sum, log) => sum + log, 0) / logs.length);
}

// The best batch by the law that was fitted with the loss.
function fittedBatch({ batch, exponents, reference }, columns) {
  const terms = Object.entries(reference).map(([name, at]) => exponents[name] * Math.log(columns[name] / at));
  return Math.exp(terms.reduce((sum, term) => sum + term, Math.log(batch)));
}

// Batches that rise to the power of two below the best one, in whole rows.
function rampTo({ recipe }, best) {
  const largest = 2 ** Math.floor(Math.log2(best));
  const row = recipe.pretrain_sequence;
  const batches = recipe.ramp.map(([, share]) => row * Math.ceil(Math.max(Math.round(share * largest), 1) / row));
  return batches.filter((batch, i) => batch !== batches[i - 1]);
}

/** How a model is trained on so many tokens.
 *  @type {(data: Data, law: Law, model: GridModel, n_tokens: Tokens, isFamily: boolean) => Recipe} */
export function recipeOf(data, law, model, n_tokens, isFamily) {
  const { recipe } = data;
  const { n_active, n_experts } = model;
  const counts = countsOfBatchLaws(data, model);
  const n_total = law.counts_embedding ? model.n_total : counts.N;
  const isBeyond = exceedsRuns(law, { n_active, n_total, n_tokens });
  const takesPublished = isFamily || law.base_config == null || isBeyond;
  if (counts.active >= recipe.smallest && takesPublished) {
    let best = publishedBatch(data, model, counts, n_tokens);
    if (law.batch) best = fittedBatch(law.batch, { n_active, n_tokens, n_experts });
    const sequence = recipe.pretrain_sequence;
    return { isPublished: true, sequence, batches: rampTo(data, best), group_tokens: sequence };
  }
  const isPublished = law.base_config === recipe.pretrain_config;
  const sequence = law.models.seq_len ?? recipe.sequence;
  const isPaper = law.base_config === recipe.papers_config;
  const steps = recipe.batch_ramp.filter(([start]) => !isPaper || start < n_tokens);
  const batches = steps.map(([, batch]) => batch);
  return { isPublished, sequence, batches, group_tokens: isPublished ? sequence : recipe.group_tokens };
}
