// From the state of the form to options; bad input gets the command line's sentence.

import { flopsPerHour } from "./cost.js";
import { shapeOf } from "./counts.js";
import { data } from "./data.js";
import { defaultState } from "./form.js";
import { PlanError, refuse, say } from "./messages.js";
import { general, parseNumber } from "./numbers.js";
import { servingChips } from "./serving.js";

/** The flag of a field of the form, perhaps with a field of its own. @type {(name: string) => string} */
export function flagOf(name) {
  return data.fields[name] ?? name;
}

// The number in a field, null where nothing is typed.
function numberIn(state, name) {
  const text = state[name].trim();
  if (text === "") return null;
  const value = parseNumber(text);
  if (Number.isNaN(value)) throw new PlanError(`${name}: found “${text}”, expected a number such as 1e22, 80 or 1.5B`);
  return value;
}

// The same where it is a number that a flag takes.
function positiveIn(state, name, isZeroAllowed = false) {
  const value = numberIn(state, name);
  const isInRange = value >= 1e-12 && value <= data.largest;
  if (value == null || isInRange || (isZeroAllowed && value === 0)) return value;
  const kind = isZeroAllowed ? "non-negative" : "positive";
  const sentence = say("NOT_POSITIVE", { flag: flagOf(name), value, kind, largest: data.largest });
  throw new PlanError(sentence.replace(/(--\w+=\w+)=/, "$1:")); // a field of a flag
}

function wholeIn(state, name) {
  const value = numberIn(state, name);
  if (Number.isInteger(value) && value >= 1) return value;
  throw new PlanError(`${name}: found “${state[name]}”, expected a whole number from 1 up`);
}

function expertCount(text) {
  const number = text.trim() === "" ? NaN : Number(text);
  if (!(number >= 1e-12 && number <= 1e40)) refuse("NOT_NUMBERS", { flag: "experts", text: `'${text}'` });
  return number;
}

// The numbers of experts to compare, ascending.
function expertsIn(state, law) {
  const value = state.experts.trim();
  if (value === "") return law.experts;
  const numbers = value.split(",").map(expertCount);
  if (numbers.some((n_experts) => !Number.isInteger(n_experts) || n_experts > 1e6)) refuse("NOT_EXPERTS", { value });
  const experts = [...new Set(numbers)].sort((a, b) => a - b);
  if (!law.chooses_experts && experts.join() !== law.experts.join()) {
    refuse(law.holds_for_mixtures ? "ONLY_ONE_NUMBER" : "ONLY_DENSE", { value, law: law.name, own: law.experts[0] });
  }
  return experts;
}

// The chips to train on; null where their kind or number is not given.
function chipsIn(state, devices) {
  const count = numberIn(state, "chips");
  const mfu = numberIn(state, "mfu");
  if (mfu != null && !(mfu >= 1e-6 && mfu <= 1)) refuse("NO_MFU", { value: state.mfu.trim(), found: general(mfu) });
  const dollars_per_hour = positiveIn(state, "dollars_per_hour", true);
  if (count == null || !(state.chip in data.chips)) return null;
  if (!(count >= 1 && count <= 1e9 && Number.isInteger(count))) {
    refuse("NO_CHIPS", { value: `${state.chip}:${state.chips}`, kinds: Object.keys(data.chips).join(", ") });
  }
  const serve_batch = Math.max(1, Math.round(numberIn(state, "sequences") ?? 1)); // sequences are decoded at once
  return { kind: state.chip, count, mfu, dollars_per_hour, devices, serve_batch };
}

// How fast a model must decode, all sequences of a batch together; null where nothing is required.
function servingIn(state, chips) {
  const tokens_per_second = positiveIn(state, "serve_tokens_per_second");
  if (tokens_per_second == null) return null;
  if (chips == null) refuse("NEEDS_CHIPS", { flag: "serve" });
  return { tokens_per_second, batch: chips.serve_batch, chips: servingChips(chips.kind, chips.devices) };
}

// {flops, budget}: the FLOPs, null where there is no such limit, and the flags that gave the budget.
function budgetIn(state, hours, chips) {
  if (hours == null) return { flops: positiveIn(state, "flops"), budget: "--flops" };
  if (chips == null) throw new PlanError("hours need a known kind of chip and a number of chips");
  const budget = say("HOURS_BUDGET", { hours, chips: `${chips.kind}:${chips.count}` });
  return { flops: chips.mfu == null ? null : hours * flopsPerHour(chips), budget };
}

/** The options that the state asks for. Throws PlanError. @type {(law: Law, state: State) => Options} */
export function optionsIn(law, state) {
  const memory_gb = positiveIn(state, "memory_gb");
  const devices = wholeIn(state, "devices");
  const max_tokens = numberIn(state, "max_tokens");
  if (max_tokens != null && max_tokens < 1) refuse("LESS_THAN_A_TOKEN", { value: max_tokens });
  const hours = positiveIn(state, "hours");
  const experts = expertsIn(state, law);
  const chips = chipsIn(state, devices);
  const kv_tokens = String((numberIn(state, "context") ?? 0) * (numberIn(state, "sequences") ?? 0));
  const limits = {
    ...budgetIn(state, hours, chips),
    memory_bytes: memory_gb == null ? null : memory_gb * 1e9 * devices,
    bytes_per_parameter: positiveIn(state, "bytes_per_parameter"),
    kv_tokens: positiveIn({ kv_tokens }, "kv_tokens", true),
    bytes_per_kv_element: positiveIn(state, "bytes_per_kv_element"),
    inference_tokens: positiveIn(state, "inference_tokens", true) ?? 0,
    max_tokens: positiveIn(state, "max_tokens"),
    serving: servingIn(state, chips),
  };
  const reference = referenceModel(state.like);
  const typed = typedSizes(law, state);
  const shape = shapeIn(law, reference, typed);
  return { law, like: state.like, typed, shape, reference, limits, experts, chips, memory_gb, devices, hours };
}

// The sizes that are typed, where the law and the model to start from have others.
function typedSizes(law, state) {
  const usual = defaultState(law, state.like);
  const names = ["vocab_size", "width_per_block"].filter((name) => ![usual[name], ""].includes(state[name].trim()));
  return Object.fromEntries(names.map((name) => [name, wholeIn(state, name)]));
}

// The shape of the reference model, else of the law's own, with the sizes that are typed.
function shapeIn(law, reference, typed) {
  const { vocab_size, width_per_block } = { ...(reference?.shape ?? law.shape), ...typed };
  const question = [vocab_size, width_per_block].find((size) => typeof size === "string"); // that asks for one
  if (question) throw new PlanError(question);
  const base = reference ? referenceShape(reference, law) : law.own;
  return shapeOf({ ...base, vocab_size, width_per_block });
}

/** Models built like a published one, with experts as the law counts them.
 *  @type {(reference: Reference, law: Law) => object} */
export function referenceShape({ shape }, law) {
  return { ...shape, counts_routed_experts: Boolean(law.own) };
}

// The published model of a name; null for "".
function referenceModel(name) {
  if (name === "") return null;
  if (name in data.published) return data.published[name];
  const names = Object.keys(data.published).join(", ");
  const advice = "fit plan --like takes a config.json";
  throw new PlanError(`--like=${name}: this page holds no such model, but ${names}; ${advice}`);
}
