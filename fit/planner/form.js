// What a reader asks: fields with sliders on log scales, their state (texts as typed, by the names of the flags of
// `fit plan` where there is one) in the URL's hash, and what it means: shape, limits, experts, cost.

import { rateOf } from "./cost.js";
import { even, memoryOf, shapeOf } from "./counts.js";
import { lawAt } from "./law.js";
import { readLike } from "./like.js";
import { amount, digits, format, parsed, typed } from "./numbers.js";
import { PlanError, refusal } from "./words.js";

// kind: "count" is shown as 1.5B, else a plain number; end: what the slider's end means, [text typed, its words].
export const FIELDS = [
  { name: "flops", label: "Training FLOPs", group: "budget" },
  { name: "hours", label: "or hours on these chips", group: "budget", range: () => [1, 1e4] },
  {
    name: "target_loss",
    label: "or a loss to reach, training and serving at least cost",
    group: "budget",
    last: ["", "not asked"],
  },
  { name: "chips", label: "Chips", group: "budget", kind: "count", integer: true, range: () => [1, 1e5] },
  { name: "mfu", label: "MFU, the share of their peak that is used", group: "budget", range: () => [0.05, 0.8] },
  { name: "dollars_per_hour", label: "Dollars per chip and hour", group: "budget", range: () => [0.1, 20] },
  { name: "memory_gb", label: "Memory of one device, GB", group: "memory", last: ["", "no limit"] },
  { name: "devices", label: "Devices that share it", group: "memory", integer: true, range: () => [1, 1024] },
  {
    name: "context",
    label: "Tokens of context",
    group: "serving",
    kind: "count",
    integer: true,
    first: ["0", "no cache"],
    range: () => [128, 2e6],
  },
  { name: "sequences", label: "Sequences at once", group: "serving", kind: "count", integer: true, range: () => [1, 1e4] },
  {
    name: "inference_tokens",
    label: "Tokens to serve, out of the FLOPs",
    group: "serving",
    kind: "count",
    first: ["0", "none"],
  },
  {
    name: "max_tokens",
    label: "Training tokens there are",
    group: "data-group",
    kind: "count",
    last: ["", "no limit"],
  },
  { name: "epochs", label: "Times they may be read", group: "data-group", first: ["", "once"], range: () => [1, 100] },
  { name: "vocab_size", label: "Vocabulary", group: "models", integer: true, range: () => [128, 512e3] },
  {
    name: "width_per_block",
    label: "Width per block, d_model / n_blocks",
    group: "models",
    integer: true,
    range: () => [4, 512],
  },
  ...[
    ["granularity", "Granularity: how many times narrower an expert is than a dense layer", 1, 32],
    ["used", "Width that a token uses, in dense layers", 0.1, 8],
    ["shared_experts", "Shared experts, of those that a token uses", 1, 8],
    ["dense_blocks", "Dense blocks before the mixture", 1, 8],
    ["kv_share", "Heads of keys and values per head of queries", 0.01, 1],
  ].map(([name, label, ...ends]) => ({ name, label, group: "models", first: ["", "as the law's"], range: () => ends })),
];
const LIMITS = { granularity: [1, 1e40, "plain"], kv_share: [1e-3, 1, "plain"] };
for (const name of ["shared_experts", "dense_blocks"]) {
  LIMITS[name] = [0, 1e40, "whole"];
  FIELDS.find((field) => field.name === name).integer = true;
}
const BYTES = ["bytes_per_parameter", "bytes_per_kv_element"];
export const NAMES = ["law", "like", "chip", "experts", ...BYTES, ...FIELDS.map(({ name }) => name)];

const usualShape = (law) =>
  shapeOf({ vocab_size: +law.shape.vocab_size || 50257, width_per_block: +law.shape.width_per_block || 64 });
const BARE = { bytes_per_parameter: 2, bytes_per_kv_element: 2, kv_tokens: 0 };

// [lowest, highest] of a field's slider, for this law.
export function rangeOf(field, law) {
  if (field.range) return field.range();
  const [low, high] = law.ranges.training_flops ?? [1e17, 1e21];
  const [least, most] = [low / 10, high * 1e5];
  if (field.name === "flops") return [least, most];
  const shape = usualShape(law);
  const best = (flops) => Math.sqrt(flops / 120);
  const loss = lawAt(law, shape, law.experts[0]).loss;
  if (field.name === "target_loss") return [most, least].map((flops) => loss(best(flops), flops / 6 / best(flops)));
  if (field.name !== "memory_gb") return [least / 6 / best(least) / 3, 30 * (most / 6 / best(most))];
  return [memoryOf(shape, BARE, shape.width_per_block, 1) / 1e9, (60 * best(most)) / 1e9];
}

// What the page shows of a law before anything was typed.
export function defaults(law, like = "") {
  const paper = law.form === "joint" && law.published && !like;
  const flops = paper ? 1e22 : +(3 * (law.ranges.training_flops?.[1] ?? 1e21)).toPrecision(1);
  return {
    law: law.name,
    chip: "H100",
    chips: law.published ? "512" : "1",
    mfu: "0.4",
    dollars_per_hour: "2",
    hours: "",
    target_loss: "",
    flops: typed(flops),
    memory_gb: paper ? "80" : "",
    devices: "1",
    context: paper ? "16384" : "0",
    sequences: "1",
    bytes_per_parameter: "2",
    bytes_per_kv_element: "2",
    inference_tokens: "0",
    max_tokens: "",
    epochs: "",
    experts: law.experts.join(","),
    ...{ like, granularity: "", used: "", shared_experts: "", dense_blocks: "", kv_share: "" },
    ...Object.fromEntries(
      ["vocab_size", "width_per_block"].map((name) => [
        name,
        Number.isFinite(law.shape[name]) ? String(law.shape[name]) : "",
      ]),
    ),
  };
}

// [the state that a hash names, over the law's defaults; a sentence on settings in it that there are not, or ""]; hours or
// a loss to reach, where given, take the place of FLOPs.
export function fromHash(hash, laws) {
  const parts = hash
    .replace(/^#/, "")
    .split("&")
    .filter(Boolean)
    .map((part) => part.split(/=(.*)/s).slice(0, 2));
  const given = Object.fromEntries(
    parts.filter(([name]) => NAMES.includes(name)).map(([name, text]) => [name, decoded(text)]),
  );
  const law = laws.find(({ name }) => name === given.law) ?? laws[0];
  const others = parts.map(([name]) => name).filter((name) => !NAMES.includes(name));
  const unknown = others.length
    ? `the address asks for ${others.map((name) => `“${name}”`).join(", ")}, which this page does not have; it has ${NAMES.join(", ")}`
    : "";
  return [{ ...defaults(law, given.like), ...(given.hours || given.target_loss ? { flops: "" } : {}), ...given }, unknown];
}

export function toHash(state, law) {
  const usual = { ...defaults(law, state.like), like: "" };
  const changed = NAMES.filter((name) => name === "law" || state[name] !== usual[name]);
  return (
    "#" +
    changed.map((name) => `${name}=${encodeURIComponent(state[name]).replace(/%2[CF]/g, decodeURIComponent)}`).join("&")
  );
}

function decoded(text = "") {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a lone %: as it was typed
  }
}

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
  if (!law.knows_experts && experts.join() !== "1") refusal("ONLY_DENSE", { value, law: law.name });
  return experts;
}

// The chips to train on, as `fit plan --chips` has them; null where their kind, number or MFU is not given.
function chipsOf(data, state, devices) {
  const [count, mfu] = ["chips", "mfu"].map((name) => numberOf(state, name));
  const dollars = flagOf(data, state, "dollars_per_hour", true);
  if (count == null || mfu == null || !(state.chip in data.chips)) return null;
  if (!(count >= 1 && count <= 1e9 && count === Math.floor(count)))
    refusal("NO_CHIPS", { value: `${state.chip}:${state.chips}`, kinds: Object.keys(data.chips).join(", ") });
  if (!(mfu >= 1e-6 && mfu <= 1)) refusal("NO_MFU", { value: state.mfu, found: format("{mfu:g}", { mfu }) });
  return { kind: state.chip, count, mfu, dollars_per_hour: dollars, devices };
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
  const chips = chipsOf(data, state, devices);
  if (hours != null && chips == null)
    throw new PlanError("hours make FLOPs only with a known kind of chip, a number of chips and MFU");
  const [context, sequences] = ["context", "sequences"].map((name) => numberOf(state, name) ?? 0);
  const kv = String(context * sequences);
  const limits = {
    flops: hours == null ? flagOf(data, state, "flops") : 3600 * hours * rateOf(data, chips),
    memory_bytes: memory == null ? null : memory * 1e9 * devices,
    bytes_per_parameter: flagOf(data, state, "bytes_per_parameter"),
    kv_tokens: flagOf(data, { kv_tokens: kv }, "kv_tokens", true),
    bytes_per_kv_element: flagOf(data, state, "bytes_per_kv_element"),
    inference_tokens: flagOf(data, state, "inference_tokens", true) ?? 0,
    max_tokens: flagOf(data, state, "max_tokens"),
    epochs: most == null ? null : epochs,
  };
  const experts = expertsOf(state, law);
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
  if (used != null && !law.knows_experts) refusal("USED_OF_MIXTURES", { value: format("{used:g}", { used }), law: law.name });
  const { split, shared, n_dense, kv_share, attention, head_dim, ff, tied, trained } = { ...asPlain, ...asked };
  const narrow = even((used ?? asPlain.used) * split);
  if (narrow <= shared || Math.abs(narrow / split - (used ?? asPlain.used)) > 0.1 * (used ?? asPlain.used))
    refusal("NO_WHOLE_CHOICE", { value: used == null ? "" : format("{used:g}", { used }), split, shared, used: used ?? asPlain.used });
  const built = { split, shared, n_dense, kv_share, used: narrow / split, attention, head_dim, ff, tied, trained };
  return [shapeOf({ ...plain, ...built }), { ...given, ...asked }];
}

// Where a slider of 0 to 1000 stands for a text, and the text where it stands.
const STEPS = 1000;
export function toSlider(field, law, text) {
  const [low, high] = rangeOf(field, law);
  const value = parsed(text);
  if (field.last && text.trim() === "") return STEPS;
  if (!(value > 0)) return 0;
  return Math.min(Math.max(Math.round((STEPS * Math.log(value / low)) / Math.log(high / low)), 0), STEPS);
}

export function fromSlider(field, law, at) {
  if (field.first && +at === 0) return field.first[0];
  if (field.last && +at === STEPS) return field.last[0];
  const [low, high] = rangeOf(field, law);
  const value = +(low * (high / low) ** (at / STEPS)).toPrecision(2);
  return shown(field, field.integer ? Math.max(1, Math.round(value)) : value);
}

// A number as its field shows it.
export function shown(field, value) {
  if (field.kind === "count" && value >= 1e4) return amount(value);
  return typed(+digits(value, 4));
}
