// What is asked on the page, as a command.

import { PAPER_SHAPE } from "./counts.js";
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

function flagsOf(state, { law, shape, reference, limits, experts, chips, memory_gb, devices, hours }, isComparison) {
  const flags = new Map();
  function add(name, value, usual) {
    if (value == null || value === usual) return;
    const [flag, field] = flagOf(name).split("=");
    const text = field ? `${field}:${flagText(value)}` : flagText(value);
    flags.set(flag, flags.has(flag) ? `${flags.get(flag)},${text}` : text);
  }
  const { like } = state;
  if (like) flags.set("like", quoted(like));
  if (hours != null) add("hours", hours);
  else add("flops", limits.flops);
  if (chips) {
    flags.set("chips", `${chips.kind}:${chips.count}`);
    add("mfu", chips.mfu);
    if (!isComparison) add("dollars_per_hour", chips.dollars_per_hour);
  }
  add("memory_gb", memory_gb);
  add("devices", devices, 1);
  if (limits.serving) {
    add("serve_tokens_per_second", limits.serving.tokens_per_second);
    add("serve_batch", limits.serving.batch, 64);
  } else if (chips && chips.serve_batch > 1) add("serve_batch", chips.serve_batch, 64);
  add("bytes_per_parameter", limits.bytes_per_parameter, 2);
  add("kv_tokens", limits.kv_tokens, 0);
  add("bytes_per_kv_element", limits.bytes_per_kv_element, 2);
  add("inference_tokens", limits.inference_tokens, 0);
  add("max_tokens", limits.max_tokens);
  const usual = defaultState(law, like);
  if (experts.join() !== usual.experts) flags.set("experts", experts.join());
  const compared = reference?.shape ?? PAPER_SHAPE; // what the command compares without these flags
  for (const name of ["vocab_size", "width_per_block"]) {
    if (isComparison) add(name, shape[name], compared[name]);
    else if (isTyped(state, name, law)) add(name, shape[name]);
    else if (!like) add(name, shape[name], law.shape[name]);
  }
  return [...flags].map(([name, text]) => `--${name}=${text}`);
}
