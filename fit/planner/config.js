// The training config of a plan's buildable model, letter by letter as `fit plan --emit_config` writes it.

import { limitsAt } from "./counts.js";
import { extrapolation } from "./law.js";
import { format } from "./numbers.js";
import { refusal, sentences, say, warningOf } from "./words.js";

// The config file of the plan's model, as `--emit_config` writes it.
export function config(data, law, plan) {
  const built = plan.buildable;
  if (!built) refusal("NOTHING_BUILT");
  checkConfig(data, law, plan, built);
  const base = plan.base_config;
  const parts = /^((?:[A-Za-z_]\w*\/)+)([A-Za-z_]\w*)\.py$/.exec(base);
  const begin = `from ${parts[1].slice(0, -1).replaceAll("/", ".")} import ${parts[2]} as base`;
  const grouped = (n) => format("{n:,}", { n }).replaceAll(",", "_");
  const paper = ["d_model", "n_blocks", "n_heads", "d_ff", "n_experts", "vocab_size"];
  const more = ["n_kv_heads", "head_dim", "tied_embeddings", "top_k", "d_expert", "n_shared_experts", "n_dense_blocks"];
  const shape = [...paper, ...more].filter((name) => name in built);
  const fields = { ...built, n_experts: built.routed_experts ?? built.n_experts };
  const literal = (value) => (typeof value === "boolean" ? (value ? "True" : "False") : value);
  const ofMixtures = ["model.scores", "model.balance"]; // that a dense model may not have
  return (
    `"""${docstring(plan)}"""\n\n${begin}\n\n\ndef get_config():\n    config = base.get_config()\n` +
    shape.map((name) => `    config.model.${name} = ${literal(fields[name])}\n`).join("") +
    Object.entries(law.override_values)
      .filter(([field]) => built.n_experts > 1 || !ofMixtures.includes(field))
      .map(([field, value]) => `    config.${field} = ${value}  # as the runs had it\n`)
      .join("") +
    `    config.n_tokens = (${grouped(built.n_tokens)},)\n${microbatch(plan, grouped)}    # a third of the run at most\n` +
    `    config.optimizer.warmup_tokens = min(config.optimizer.warmup_tokens, ` +
    `${grouped(Math.floor(built.n_tokens / 3))})\n    return config\n`
  );
}

// The line that says how many tokens the chips hold at once, where they do not hold the largest batch.
function microbatch({ buildable, chips }, grouped) {
  const fewer = buildable.cost?.microbatch_tokens;
  return fewer ? `    config.microbatch_tokens = ${grouped(fewer)}  # ${say("CONFIG_MICROBATCH", chips)}\n` : "";
}

// Throws the command line's sentence where the config of the law's runs cannot serve the model.
function checkConfig(data, law, plan, built) {
  const { base_config: base } = plan;
  const another = sentences.ANOTHER_CONFIG;
  if (base == null) {
    const several = law.configs;
    const open = several && { count: several.length, names: several.slice(0, 4).join(", ") };
    refusal("OPEN_CONFIG", { law: law.name, why: open ? say("SEVERAL_CONFIGS", open) : sentences.NO_CONFIG, another });
  }
  if (law.foreign_config) refusal("FOREIGN_CONFIG", { flag: "emit_config", law: law.name, base });
  const known = law.models.base_config ? law : data.laws.find(({ name }) => name === data.paper.law);
  const { vocab_size } = known.models;
  if (built.vocab_size !== vocab_size)
    refusal("OTHER_VOCABULARY", { base, known: vocab_size, asked: built.vocab_size, another });
  const far = extrapolation(known, { n_active: built.n_active, n_tokens: built.n_tokens }).filter(
    (o) => o.factor > data.paper.far && (o.column === "n_active" || (o.column === "n_tokens" && o.value < o.low)),
  );
  if (far.length) refusal("FAR_FROM_CONFIG", { outside: warningOf(far), base, another });
}

function docstring(plan) {
  const built = plan.buildable;
  const given = Object.entries(limitsAt(plan.constraints, built.n_experts))
    .filter(([, v]) => v)
    .map(([name, v]) => format(`${name} {v:g}`, { v }));
  const lines = [
    say("CONFIG_MODEL", built) + "\n",
    say("CONFIG_PLANNED", { law: plan.law, given: given.join(", ") }),
  ];
  if (built.extrapolation.length) lines.push(say("CONFIG_OUTSIDE", { outside: warningOf(built.extrapolation) }));
  lines.push("\n    python -m jmoe.train --config=THIS_FILE --workdir=DIR\n", say("CONFIG_EXACT", built));
  if (built.learning_rate) lines.push(say("CONFIG_RATE", built));
  return lines.join("\n").replaceAll("\\", "/").replaceAll('"', "'") + "\n";
}
