// What is asked on the page, as a command.

import { numberOf } from "./asked.js";
import { defaults } from "./form.js";
import { typed } from "./numbers.js";

// A word of a command, in quotes where the shell needs them.
export const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`);

// The same question as a command: of one law or, with `laws`, of several.
export function command(law, state, { given, limits, experts, loss, chips, memory, devices, hours }, laws = null) {
  const usual = defaults(law, state.like);
  const flags = [laws ? `--laws=${quoted(laws.join(","))}` : `--law=${quoted(law.name)}`];
  const add = (name, value, unless) => value != null && value !== unless && flags.push(`--${name}=${typed(value)}`);
  if (state.like.trim()) flags.push(`--like=${state.like.trim().startsWith("{") ? "config.json" : quoted(state.like)}`);
  if (loss != null && !laws) add("target_loss", loss);
  else if (hours != null) add("hours", hours);
  else add("flops", limits.flops);
  if (chips) {
    flags.push(`--chips=${chips.kind}:${chips.count}`);
    const by = typeof chips.mfu === "object";
    if (by) flags.push(`--mfu=${quoted(JSON.stringify(chips.mfu))}`);
    else add("mfu", chips.mfu, 0.4);
    if (!laws) add("dollars_per_hour", chips.dollars_per_hour);
  }
  add("memory_gb", memory);
  add("devices", devices, 1);
  add("bytes_per_parameter", limits.bytes_per_parameter, 2);
  add("kv_tokens", limits.kv_tokens, 0);
  add("bytes_per_kv_element", limits.bytes_per_kv_element, 2);
  add("inference_tokens", limits.inference_tokens, 0);
  add("max_tokens", limits.max_tokens);
  if (!laws) add("epochs", limits.epochs);
  if (experts.join() !== usual.experts) flags.push(`--experts=${experts.join()}`);
  for (const name of ["vocab_size", "width_per_block"])
    if (laws || !state.like.trim() || (state[name].trim() && state[name] !== usual[name]))
      add(name, given[name], laws || state.like.trim() ? undefined : law.shape[name]);
  for (const name of ["granularity", "used", "shared_experts", "dense_blocks", "kv_share"])
    add(name, numberOf(state, name));
  return `python -m fit ${laws ? "compare" : "plan"} ${flags.join(" ")}`;
}
