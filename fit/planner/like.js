// Models that others published, from their config.json (Hugging Face's names); as fit/shape/like.py.

import { TRAINING, endsOf, shapeOf, structure } from "./counts.js";
import { PlanError, say } from "./words.js";

// The model of a published name or of a config's text: {name, n_active, n_total, ..., mixture(over, trained), columns};
// throws PlanError in one sentence where it is none.
export function readLike(data, given) {
  const where = given in data.published || given.length > 60 ? "--like" : `--like=${given}`;
  let config = data.published[given];
  if (!config && given.trim().startsWith("{")) {
    try {
      config = JSON.parse(given);
    } catch (error) {
      throw new PlanError(`--like: is not JSON: ${error.message}`);
    }
  }
  if (!config) {
    const names = Object.keys(data.published).join(", ");
    throw new PlanError(`${where}: found no config.json; paste one, or take a published model: ${names}`);
  }
  const name = given in data.published ? given : String(config.name || config._name_or_path || "your model");
  return known(data, config.text_config ?? config, where, name);
}

// A config's text with only what is read of it, so that it fits into an address; as it is where it is none.
export function slim(text) {
  try {
    const config = JSON.parse(text);
    const inner = config.text_config ?? config;
    const kept = Object.entries(inner).filter(([name, v]) => READ.test(name) && v != null && v !== "");
    if (!kept.length) return text;
    const kinds = inner.layer_types && { layer_types: [...new Set(inner.layer_types)] };
    return JSON.stringify({ ...Object.fromEntries(kept), ...kinds });
  } catch {
    return text;
  }
}
const READ =
  /^(name|_name_or_path|(hidden|intermediate|vocab)_size|num_(hidden_layers|nextn_predict_layers|(local_)?experts(_per_tok)?)|experts_per_token|n_(routed|shared)_experts|(moe|shared_expert)_intermediate_size|num_(attention|key_value)_heads|head_dim|first_k_dense_replace|mlp_only_layers|(kv|q)_lora_rank|qk_(nope|rope)_head_dim|v_head_dim|tie_word_embeddings)$/;

function known(data, config, where, name) {
  const number = (names, otherwise) => {
    const found = [names].flat().find((n) => config[n] != null);
    const value = found ? config[found] : otherwise;
    if (value === undefined)
      throw new PlanError(`${where}: has no ${[names].flat()[0]}, so it is no config.json of a language model`);
    const least = otherwise === 0 ? 0 : 1;
    if (!Number.isInteger(value) || value < least || value >= 1e9)
      throw new PlanError(`${where}: ${[names].flat()[0]} is ${JSON.stringify(value)}, expected a whole number from ${least} up`);
    return value;
  };
  const [d_model, n_blocks, heads] = ["hidden_size", "num_hidden_layers", "num_attention_heads"].map((n) => number(n));
  const experts = number(["num_experts", "num_local_experts", "n_routed_experts"], 0);
  const top_k = experts ? number(["num_experts_per_tok", "experts_per_token"]) : 1;
  const d_ff = number("intermediate_size");
  const d_expert = experts ? number("moe_intermediate_size", d_ff) : d_ff;
  const always =
    number("n_shared_experts", 0) || Math.floor(number("shared_expert_intermediate_size", 0) / d_expert);
  const first = number("first_k_dense_replace", 0) || (config.mlp_only_layers ?? []).length;
  const [shared, n_dense] = experts ? [always, first] : [0, 0];
  const kinds = config.layer_types ?? [];
  const { latent, window, ahead, linear } = data.known_notes;
  const notes = [];
  let [attention, cache, head_dim] = [0, 0, 0];
  const rank = number("kv_lora_rank", 0);
  if (rank) {
    const [nope, rope, size] = ["qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"].map((n) => number(n));
    const [narrow, queries] = [number("q_lora_rank", 0), heads * (nope + rope)];
    attention = (narrow ? narrow * (d_model + queries) : d_model * queries) + d_model * (rank + rope);
    attention += rank * heads * (nope + size) + heads * size * d_model;
    [cache, head_dim] = [rank + rope, size];
    notes.push(latent);
  } else {
    head_dim = number("head_dim", Math.floor(d_model / heads));
    const keys = number("num_key_value_heads", heads);
    [attention, cache] = [2 * d_model * head_dim * (heads + keys), 2 * keys * head_dim];
  }
  if (kinds.includes("sliding_attention")) notes.push(window);
  if (kinds.some((kind) => !["sliding_attention", "full_attention"].includes(kind))) notes.push(linear);
  if (number("num_nextn_predict_layers", 0)) notes.push(ahead);
  if (top_k > Math.max(experts, 1) || n_dense >= n_blocks)
    throw new PlanError(`${where}: a token chooses ${top_k} of ${experts} experts, in ${n_blocks - n_dense} blocks`);
  const [vocab_size, tied] = [number("vocab_size"), Boolean(config.tie_word_embeddings)];
  const split = top_k + shared;
  const count = (used) =>
    vocab_size * (tied ? 1 : 2) * d_model +
    n_blocks * attention +
    3 * d_model * (n_dense * d_ff + (n_blocks - n_dense) * d_expert * used);
  const grouped = cache / (2 * d_model);
  const queries = attention / (2 * d_model ** 2) - grouped;
  const own = { n_active: count(split), n_total: count(Math.max(experts, 1) + shared) };
  const whole_experts = (Math.max(experts, 1) + shared) / split;
  const mixture = (trained) => ({
    ...{ vocab_size, width_per_block: Math.round(d_model / n_blocks), final_norm: true, split, shared, n_dense },
    ...{ kv_share: grouped / queries, used: 1, attention: queries, head_dim, ff: (split * d_expert) / d_model },
    ...{ tied, trained },
  });
  return {
    counts: {
      name,
      ...own,
      ...{ n_experts: Math.max(experts, 1), top_k, n_shared_experts: shared, whole_experts, notes },
      cache_elements_per_token: cache * n_blocks,
      training_bytes: data.cost.state * own.n_total,
      training_flops_per_token: TRAINING * own.n_active,
    },
    mixture,
    // What a law may read of it; embedding: whether its counts include embedding and head.
    columns(embedding, trained) {
      const shape = shapeOf(mixture(trained));
      const less = embedding ? 0 : endsOf(shape) * d_model;
      const fine = structure(shape, trained ? Math.max(experts, 1) : whole_experts);
      return { n_active: own.n_active - less, n_total: own.n_total - less, ...fine };
    },
  };
}

// What it counts, in a sentence.
export const knownInWords = (counts) => say("KNOWN", { ...counts, cache: 2 * counts.cache_elements_per_token });
