// The question on the page, as a command.

import { data } from "./data.js";
import { defaultState } from "./form.js";
import { flagText } from "./numbers.js";
import { flagOf, isTyped } from "./options.js";

// A word of a command, in quotes where the shell needs them.
function quoted(text) {
  const isPlain = /^[\w@%+=:,./-]+$/.test(text);
  return isPlain ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

/** The question for `fit plan`. @type {(state: State, options: Options) => string} */
export function planCommand(state, options) {
  return ["python -m fit plan", `--law=${quoted(options.law.name)}`, ...flagsOf(state, options, false)].join(" ");
}

/** The question for `fit compare`. @type {(state: State, options: Options, laws: string[]) => string} */
export function compareCommand(state, options, laws) {
  return ["python -m fit compare", `--laws=${quoted(laws.join(","))}`, ...flagsOf(state, options, true)].join(" ");
}

// The value of an option that the command is not given.
const ASSUMED = {
  devices: 1,
  serve_batch: 64,
  bytes_per_parameter: 2,
  bytes_per_kv_element: 2,
  kv_tokens: 0,
  inference_tokens: 0,
};

function flagsOf(state, options, isComparison) {
  const { law, shape, limits, experts, chips, memory_gb, devices, hours } = options;
  const { like } = state;
  const flags = new Map(like ? [["like", quoted(like)]] : []);
  function add(values) {
    for (const [name, value] of Object.entries(values)) {
      if (value == null || value === ASSUMED[name]) continue;
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
  for (const name of ["vocab_size", "width_per_block"]) {
    if (shape[name] !== sizeWithoutFlag(name, state, options, isComparison)) add({ [name]: shape[name] });
  }
  return [...flags].map(([name, text]) => `--${name}=${text}`);
}

// The size that the command takes without a flag; null where the page's is typed.
function sizeWithoutFlag(name, state, { law, shape, reference }, isComparison) {
  if (isComparison) return (reference?.shape ?? data.paper_shape)[name];
  return isTyped(state, name, law) ? null : shape[name];
}
