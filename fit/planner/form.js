// What a reader asks: fields with sliders on log scales, their state (texts as typed, by the names of the flags of
// `fit plan` where there is one) in the URL's hash. asked.js says what it means.

import { memoryOf, shapeOf } from "./counts.js";
import { lawAt } from "./law.js";
import { amount, digits, parsed, typed } from "./numbers.js";

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
  { name: "mfu", label: 'MFU, the used share of their peak; by experts: {"1": 0.45, "8": 0.38}', group: "budget", range: () => [0.05, 0.8] },
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
    ["shared_experts", "Shared experts, of those that a token uses", 1, 8, true],
    ["dense_blocks", "Dense blocks before the mixture", 1, 8, true],
    ["kv_share", "Heads of keys and values per head of queries", 0.01, 1],
  ].map(([name, label, low, high, integer = false]) => {
    return { name, label, group: "models", integer, first: ["", "as the law's"], range: () => [low, high] };
  }),
];
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
// a loss to reach, where given, take the place of FLOPs. hash: "#flops=1e22&...", or the same after a "?".
export function fromHash(hash, laws) {
  const parts = hash
    .replace(/^[#?]/, "")
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
