// Models that others published, from their config.json (Hugging Face's names); as fit/shape/like.py.

import { TRAINING, endsOf, even, shapeOf, structure } from "./counts.js";
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
    const kinds = inner.layer_types ?? [];
    const short = kinds.includes("linear_attention") ? kinds : [...new Set(kinds)];
    const unknown = Object.keys(inner).filter((name) => UNUSUAL.test(name) && inner[name]);
    return JSON.stringify({
      ...Object.fromEntries(kept),
      ...(kinds.length && { layer_types: short }),
      ...Object.fromEntries(unknown.map((name) => [name, true])),
    });
  } catch {
    return text;
  }
}
// Fields of structures that are not counted: NOT_COUNTED in fit/shape/like.py.
const UNUSUAL = /^(block_configs|attn_type_list|hybrid_override_pattern|layers_block_type|attn_layer_period|mamba_d_state|ssm_cfg|state_size|hidden_size_per_layer_input|cla_share_factor|linear_attn_config)$/;
const READ =
  /^(name|_name_or_path|model_type|hidden_act|(hidden|intermediate|vocab)_size|num_(hidden_layers|nextn_predict_layers|(local_)?experts(_per_tok)?)|experts_per_token|n_(routed|shared)_experts|(moe|shared_expert)_intermediate_size|intermediate_size_mlp|num_(attention|key_value)_heads|head_dim|first_k_dense_replace|interleave_moe_layer_step|decoder_sparse_step|moe_layers|mlp_only_layers|(kv|q)_lora_rank|qk_(nope|rope)_head_dim|v_head_dim|attn_output_gate|full_attention_interval|linear_(num_)?(key|value)_head(s|_dim)|tie_word_embeddings)$/;

// A field as a whole number: the first of `names` that is there, else `otherwise`; undefined stands for none.
function reader(config, where) {
  return (names, otherwise) => {
    const found = [names].flat().find((n) => config[n] != null);
    const value = found ? config[found] : otherwise;
    if (value === undefined)
      throw new PlanError(`${where}: has no ${[names].flat()[0]}, so it is no config.json of a language model`);
    const least = otherwise === 0 ? 0 : 1;
    if (!Number.isInteger(value) || value < least || value >= 1e9)
      throw new PlanError(`${where}: ${[names].flat()[0]} is ${JSON.stringify(value)}, expected a whole number from ${least} up`);
    return value;
  };
}

const familyOf = (config) => String(config.model_type ?? "");

// Throws PlanError with the reason for a model whose parameters these counts would get wrong.
function refuseWhatIsNotCounted(data, config, where) {
  const { not_counted, two_matrices, ungated } = data.like;
  for (const [name, reason] of Object.entries(not_counted)) {
    const value = config[name];
    const given = Array.isArray(value) ? value.length > 0 : Boolean(value);
    if (given) throw new PlanError(`${where}: ${reason} (${name}), so its parameters are not counted`);
  }
  const named = [familyOf(config), config.hidden_act].find((word, i) => (i ? ungated : two_matrices).includes(word));
  if (named)
    throw new PlanError(
      `${where}: its feed-forward layers have two matrices (${named}), and models are counted with the three of SwiGLU`,
    );
}

// {weights of all blocks' attention, cache: numbers that a token leaves in a block that has one, cacheBlocks, head_dim, notes}.
function attentionIn(data, config, number, where, d_model, n_blocks) {
  const { latent, window, linear } = data.like.notes;
  const heads = number("num_attention_heads");
  const rank = number("kv_lora_rank", 0);
  const notes = [];
  let [full, cache, head_dim] = [0, 0, 0];
  if (rank) {
    const [nope, rope, size] = ["qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"].map((n) => number(n));
    const [narrow, queries] = [number("q_lora_rank", 0), heads * (nope + rope)];
    full = (narrow ? narrow * (d_model + queries) : d_model * queries) + d_model * (rank + rope);
    full += rank * heads * (nope + size) + heads * size * d_model;
    [cache, head_dim] = [rank + rope, size];
    notes.push(latent);
  } else {
    head_dim = number("head_dim", Math.floor(d_model / heads));
    const keys = number("num_key_value_heads", heads);
    const gated = config.attn_output_gate ?? familyOf(config).startsWith("qwen3_next");
    full = 2 * d_model * head_dim * (heads + keys) + (gated ? d_model * head_dim * heads : 0);
    cache = 2 * keys * head_dim;
  }
  const interval = number("full_attention_interval", 0);
  const kinds = interval
    ? Array.from({ length: n_blocks }, (_, i) => ((i + 1) % interval ? "linear_attention" : "full_attention"))
    : (config.layer_types ?? []);
  const known = ["sliding_attention", "full_attention", "chunked_attention", "linear_attention"];
  const [unknown] = kinds.filter((kind) => !known.includes(kind)).sort();
  if (unknown) throw new PlanError(`${where}: has layers of ${unknown}, which are not counted`);
  if (kinds.includes("sliding_attention") || kinds.includes("chunked_attention")) notes.push(window);
  const nLinear = kinds.filter((kind) => kind === "linear_attention").length;
  if (!nLinear) return { weights: n_blocks * full, cache, cacheBlocks: n_blocks, head_dim, notes };
  if (kinds.length !== n_blocks)
    throw new PlanError(`${where}: layer_types has ${kinds.length} entries, expected one for each of ${n_blocks}`);
  const missing = ["linear_num_key_heads", "linear_num_value_heads"].find((name) => !(name in config));
  if (missing) throw new PlanError(`${where}: it has linear attention whose sizes it does not say (${missing})`);
  const valueHeads = number("linear_num_value_heads");
  const keys = number("linear_num_key_heads") * number("linear_key_head_dim");
  const values = valueHeads * number("linear_value_head_dim");
  const ofLinear = d_model * (2 * keys + 2 * values + 2 * valueHeads) + values * d_model;
  const nFull = n_blocks - nLinear;
  return { weights: nFull * full + nLinear * ofLinear, cache, cacheBlocks: nFull, head_dim, notes: [...notes, linear] };
}

// The indices of the blocks that have a mixture.
function mixtureBlocks(config, number, n_blocks) {
  if (config.moe_layers?.length) return [...config.moe_layers].sort((a, b) => a - b);
  const first = number("first_k_dense_replace", 0);
  const every = number(["interleave_moe_layer_step", "decoder_sparse_step"], 1);
  const dense = config.mlp_only_layers ?? [];
  const all = Array.from({ length: n_blocks }, (_, i) => i);
  return all.filter((i) => i >= first && (i + 1) % every === 0 && !dense.includes(i));
}

function known(data, config, where, name) {
  refuseWhatIsNotCounted(data, config, where);
  const number = reader(config, where);
  const [d_model, n_blocks] = ["hidden_size", "num_hidden_layers"].map((n) => number(n));
  const { weights, cache, cacheBlocks, head_dim, notes } = attentionIn(data, config, number, where, d_model, n_blocks);
  const vocab_size = number("vocab_size");
  const tied = Boolean(config.tie_word_embeddings ?? data.like.tied.some((family) => familyOf(config).startsWith(family)));
  const experts = number(["num_experts", "num_local_experts", "n_routed_experts"], 0);
  const width = number("intermediate_size");
  let [top_k, shared, n_dense, d_ff, d_expert] = [1, 0, 0, width, width];
  if (experts) {
    top_k = number(["num_experts_per_tok", "experts_per_token"]);
    d_expert = number("moe_intermediate_size", width);
    d_ff = number("intermediate_size_mlp", width);
    shared = number("n_shared_experts", 0) || Math.floor(number("shared_expert_intermediate_size", 0) / d_expert);
    if (familyOf(config).startsWith("llama4")) shared = 1;
    const mixtures = mixtureBlocks(config, number, n_blocks);
    n_dense = n_blocks - mixtures.length;
    if (top_k > experts || !mixtures.length)
      throw new PlanError(`${where}: a token chooses ${top_k} of ${experts} experts, in ${mixtures.length} blocks`);
    if (n_dense && mixtures[0] < n_dense) notes.push(data.like.notes.alternate);
  }
  if (number("num_nextn_predict_layers", 0)) notes.push(data.like.notes.ahead);
  const split = top_k + shared;
  const embedding = vocab_size * d_model;
  const count = (used) =>
    embedding * (tied ? 1 : 2) + weights + 3 * d_model * (n_dense * d_ff + (n_blocks - n_dense) * d_expert * used);
  const grouped = (cache * cacheBlocks) / n_blocks / (2 * d_model);
  const queries = weights / n_blocks / (2 * d_model ** 2) - grouped;
  const own = { n_active: count(split), n_total: count(Math.max(experts, 1) + shared) };
  const whole_experts = (Math.max(experts, 1) + shared) / split;
  const mixture = (trained) => ({
    ...{ vocab_size, width_per_block: even(d_model / n_blocks), final_norm: true, split, shared, n_dense },
    ...{ kv_share: grouped / queries, used: 1, attention: queries, head_dim, ff: (split * d_expert) / d_model },
    ...{ tied, trained },
  });
  return {
    counts: {
      name,
      ...own,
      ...{ n_experts: Math.max(experts, 1), top_k, n_shared_experts: shared, whole_experts, notes },
      n_embedding: embedding,
      n_active_without_embedding: own.n_active - embedding,
      cache_elements_per_token: cache * cacheBlocks,
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
