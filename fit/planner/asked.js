// What the state of the fields asks: shape, limits, experts, cost; bad input gets the command line's sentence.

import { flopsIn } from "./cost.js";
import { even, shapeOf } from "./counts.js";
import { readLike } from "./like.js";
import { format, parsed } from "./numbers.js";
import { PlanError, refusal } from "./words.js";

const LIMITS = { granularity: [1, 1e40, "plain"], kv_share: [1e-3, 1, "plain"] };
for (const name of ["shared_experts", "dense_blocks"]) LIMITS[name] = [0, 1e40, "whole"];

export function numberOf(state, name) {
  const text = state[name].trim();
  const value = text === "" ? null : parsed(text);
  if (Number.isNaN(value)) throw new PlanError(`${name}: found “${text}”, expected a number such as 1e22, 80 or 1.5B`);
  return value;
}

// The number of a flag, null where nothing is typed; throws the command line's sentence where it is out of range.
function flagOf(data, state, name, zero = false) {
  const value = numberOf(state, name);
  if (value != null && !((value >= 1e-12 && value <= data.largest) || (zero && value === 0)))
    refusal("NOT_POSITIVE", { flag: name, value, kind: zero ? "non-negative" : "positive", largest: data.largest });
  return value;
}

function integerOf(state, name) {
  const value = numberOf(state, name);
  if (value == null || value < 1 || value !== Math.floor(value))
    throw new PlanError(`${name}: found “${state[name]}”, expected a whole number from 1 up`);
  return value;
}

function expertsOf(state, law) {
  const value = state.experts.trim();
  if (value === "") return law.experts;
  const numbers = value.split(",").map((text) => {
    const number = text.trim() === "" ? NaN : Number(text);
    if (!(number >= 1e-12 && number <= 1e40)) refusal("NOT_NUMBERS", { flag: "experts", text: `'${text}'` });
    return number;
  });
  if (numbers.some((e) => e !== Math.floor(e) || e > 1e6)) refusal("NOT_EXPERTS", { value });
  const experts = [...new Set(numbers)].sort((a, b) => a - b);
  if (!law.knows_experts && experts.join() !== law.experts.join())
    refusal(law.of_mixtures ? "ONLY_ONE_NUMBER" : "ONLY_DENSE", { value, law: law.name, own: law.experts[0] });
  return experts;
}

// The chips to train on, as `fit plan --chips` has them; null where their kind, number or MFU is not given.
function chipsOf(data, state, devices, experts) {
  const count = numberOf(state, "chips");
  const mfu = mfuOf(state, experts);
  const dollars = flagOf(data, state, "dollars_per_hour", true);
  if (count == null || mfu == null || !(state.chip in data.chips)) return null;
  if (!(count >= 1 && count <= 1e9 && count === Math.floor(count)))
    refusal("NO_CHIPS", { value: `${state.chip}:${state.chips}`, kinds: Object.keys(data.chips).join(", ") });
  return { kind: state.chip, count, mfu, dollars_per_hour: dollars, devices };
}

// The MFU: a number, or {n_experts: number} where JSON of such was typed; null where nothing was.
function mfuOf(state, experts) {
  const value = state.mfu.trim();
  const one = value.startsWith("{") ? null : numberOf(state, "mfu");
  if (one != null && !(one >= 1e-6 && one <= 1)) refusal("NO_MFU", { value, found: format("{one:g}", { one }) });
  if (!value.startsWith("{")) return one;
  let table;
  try {
    table = JSON.parse(value);
  } catch {
    refusal("NO_MFU", { value, found: "no such table" });
  }
  for (const [e, mfu] of Object.entries(table)) {
    if (!/^\d+$/.test(e)) refusal("NO_MFU", { value, found: "no such table" });
    if (!(mfu >= 1e-6 && mfu <= 1)) refusal("NO_MFU", { value, found: `${JSON.stringify(mfu)} at E = ${e}` });
  }
  const missing = experts.find((e) => !(e in table));
  if (missing) refusal("MFU_MISSING", { value, missing, known: Object.keys(table).join(", ") });
  return table;
}

// What the state asks: {shape, limits, experts, loss, chips, memory, devices, hours}; throws PlanError with the command line's sentences.
export function asked(data, law, state) {
  const memory = flagOf(data, state, "memory_gb");
  const devices = integerOf(state, "devices");
  const most = numberOf(state, "max_tokens");
  if (most != null && most < 1) refusal("LESS_THAN_A_TOKEN", { value: most });
  const epochs = numberOf(state, "epochs");
  if (epochs != null && !(epochs >= 1 && epochs <= data.largest)) refusal("TOO_FEW_EPOCHS", { value: epochs });
  const hours = flagOf(data, state, "hours");
  const experts = expertsOf(state, law);
  const chips = chipsOf(data, state, devices, experts);
  if (hours != null && chips == null)
    throw new PlanError("hours make FLOPs only with a known kind of chip, a number of chips and MFU");
  const [context, sequences] = ["context", "sequences"].map((name) => numberOf(state, name) ?? 0);
  const kv = String(context * sequences);
  const limits = {
    flops: hours == null ? flagOf(data, state, "flops") : flopsIn(data, chips, hours),
    memory_bytes: memory == null ? null : memory * 1e9 * devices,
    bytes_per_parameter: flagOf(data, state, "bytes_per_parameter"),
    kv_tokens: flagOf(data, { kv_tokens: kv }, "kv_tokens", true),
    bytes_per_kv_element: flagOf(data, state, "bytes_per_kv_element"),
    inference_tokens: flagOf(data, state, "inference_tokens", true) ?? 0,
    max_tokens: flagOf(data, state, "max_tokens"),
    epochs: most == null ? null : epochs,
  };
  const like = state.like.trim() === "" ? null : readLike(data, state.like);
  const [shape, given] = shapeAsked(data, law, state, like);
  const loss = flagOf(data, state, "target_loss");
  return { shape, given, like, limits, experts, loss, chips, memory, devices, hours };
}

// [the shape that is asked for; {field: value} of what is typed of it, or null]: that of the model to start from, else
// the law's own.
function shapeAsked(data, law, state, like) {
  const [own, given] = [like?.mixture(Boolean(law.own)) ?? { ...law.own, final_norm: law.final_norm }, {}];
  for (const name of ["vocab_size", "width_per_block"]) {
    const usual = like ? own[name] : law.shape[name];
    const text = state[name].trim();
    if (text === "" && typeof usual === "string") throw new PlanError(usual);
    own[name] = text === "" || (like && text === String(law.shape[name])) ? usual : integerOf(state, name);
    given[name] = own[name];
  }
  const asked = {};
  const fields = { split: "granularity", shared: "shared_experts", n_dense: "dense_blocks", kv_share: "kv_share" };
  for (const [field, name] of Object.entries(fields)) {
    const value = numberOf(state, name);
    if (value == null) continue;
    const [least, most, kind] = LIMITS[name];
    if (!(value >= least && value <= most) || (kind === "whole" && value % 1))
      throw new PlanError(`--${name}=${state[name]}: expected a ${kind} number from ${least} ${most < 1e40 ? `to ${most}` : "up"}`);
    asked[field] = value;
  }
  const used = flagOf(data, state, "used");
  const { vocab_size, width_per_block, final_norm, ...more } = own;
  const plain = { vocab_size, width_per_block, final_norm };
  const asPlain = shapeOf({ ...plain, ...more });
  if (used == null && !Object.keys(asked).length) return [asPlain, given];
  if (used != null && !law.of_mixtures) refusal("USED_OF_MIXTURES", { value: format("{used:g}", { used }), law: law.name });
  const { split, shared, n_dense, kv_share, attention, head_dim, ff, tied, trained } = { ...asPlain, ...asked };
  const narrow = even((used ?? asPlain.used) * split);
  if (narrow <= shared || Math.abs(narrow / split - (used ?? asPlain.used)) > 0.1 * (used ?? asPlain.used))
    refusal("NO_WHOLE_CHOICE", { value: used == null ? "" : format("{used:g}", { used }), split, shared, used: used ?? asPlain.used });
  const built = { split, shared, n_dense, kv_share, used: narrow / split, attention, head_dim, ff, tied, trained };
  return [shapeOf({ ...plain, ...built }), { ...given, ...asked }];
}
