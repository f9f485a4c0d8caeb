// The question on the page, as a command.

import { data } from "./data.js";
import { defaultState } from "./form.js";
import { flagText } from "./numbers.js";
import { flagOf } from "./options.js";

// A word of a command, in quotes where the shell needs them.
function quoted(text) {
  const isPlain = /^[\w@%+=:,./-]+$/.test(text);
  return isPlain ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

/** The question for `fit plan`. @type {(options: Options) => string} */
export function planCommand(options) {
  return ["python -m fit plan", `--law=${quoted(options.law.name)}`, ...flagsOf(options, false)].join(" ");
}

/** The question for `fit compare`. @type {(options: Options, laws: string[]) => string} */
export function compareCommand(options, laws) {
  return ["python -m fit compare", `--laws=${quoted(laws.join(","))}`, ...flagsOf(options, true)].join(" ");
}

function flagsOf(options, isComparison) {
  const { law, like, typed, shape, reference, limits, experts, chips, memory_gb, devices, hours } = options;
  const assumed = isComparison ? { ...data.assumed, ...(reference?.shape ?? data.paper_shape) } : data.assumed;
  const flags = new Map(like ? [["like", quoted(like)]] : []);
  function add(values) {
    for (const [name, value] of Object.entries(values)) {
      if (value == null || value === assumed[name]) continue;
      const [flag, field] = flagOf(name).split("=");
      const text = field ? `${field}:${flagText(value)}` : flagText(value);
      flags.set(flag, flags.has(flag) ? `${flags.get(flag)},${text}` : text);
    }
  }
  add(hours == null ? { flops: limits.flops } : { hours });
  if (chips) {
    flags.set("chips", `${chips.kind}:${chips.count}`);
    add({ mfu: chips.mfu, dollars_per_hour: isComparison ? null : chips.dollars_per_hour });
  }
  add({ memory_gb, devices, serve_tokens_per_second: limits.serving?.tokens_per_second });
  if (limits.serving || chips?.serve_batch > 1) add({ serve_batch: chips.serve_batch });
  const { bytes_per_parameter, kv_tokens, bytes_per_kv_element, inference_tokens, max_tokens } = limits;
  add({ bytes_per_parameter, kv_tokens, bytes_per_kv_element, inference_tokens, max_tokens });
  if (experts.join() !== defaultState(law, like).experts) flags.set("experts", experts.join());
  const { vocab_size, width_per_block } = isComparison ? shape : typed;
  add({ vocab_size, width_per_block });
  return [...flags].map(([name, text]) => `--${name}=${text}`);
}
