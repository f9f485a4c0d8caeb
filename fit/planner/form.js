// The fields of the page, their sliders, and their state (texts as typed, by the names of the flags of `fit plan` where
// there is one) in the address. options.js says what the state means.

import { general, parsed, typed } from "./numbers.js";

// range: the ends of the slider, where they do not follow from the law's runs.
export const FIELDS = [
  { name: "flops", label: "Training FLOPs", group: "budget" },
  { name: "hours", label: "or hours on these chips", group: "budget", range: [1, 1e4] },
  { name: "chips", label: "Chips", group: "budget", isInteger: true, range: [1, 1e5] },
  { name: "mfu", label: "MFU, the used share of their peak", group: "budget", range: [0.05, 0.8] },
  { name: "dollars_per_hour", label: "Dollars per chip and hour", group: "budget", range: [0.1, 20] },
  { name: "memory_gb", label: "Memory of one device, GB", group: "memory", empty: "no limit" },
  { name: "devices", label: "Devices that share it", group: "memory", isInteger: true, range: [1, 1024] },
  { name: "context", label: "Tokens of context", group: "serving", isInteger: true, range: [128, 2e6] },
  { name: "sequences", label: "Sequences at once", group: "serving", isInteger: true, range: [1, 1e4] },
  { name: "inference_tokens", label: "Tokens to serve, out of the FLOPs", group: "serving" },
  { name: "max_tokens", label: "Training tokens there are", group: "data-group", empty: "no limit" },
  { name: "vocab_size", label: "Vocabulary", group: "models", isInteger: true, range: [128, 512e3] },
  { name: "width_per_block", label: "Width per block", group: "models", isInteger: true, range: [4, 512] },
];
export const CHOICES = ["law", "like", "chip", "experts", "bytes_per_parameter", "bytes_per_kv_element"];
const NAMES = [...CHOICES, ...FIELDS.map(({ name }) => name)];

// What the page shows of a law and a reference model before anything was typed.
export function defaultState(law, like = "") {
  const isPaper = law.form === "joint" && law.published && !like;
  const beyondRuns = 3 * (law.ranges.training_flops?.[1] ?? 1e21);
  const sizeText = (name) => (typeof law.shape[name] === "number" ? String(law.shape[name]) : "");
  return {
    ...Object.fromEntries(NAMES.map((name) => [name, ""])),
    ...{ law: law.name, like, experts: law.experts.join(",") },
    ...{ chip: "H100", chips: law.published ? "512" : "1", mfu: "0.4", dollars_per_hour: "2" },
    flops: typed(isPaper ? 1e22 : Number(beyondRuns.toPrecision(1))),
    ...{ memory_gb: isPaper ? "80" : "", devices: "1", context: isPaper ? "16384" : "0", sequences: "1" },
    ...{ bytes_per_parameter: "2", bytes_per_kv_element: "2", inference_tokens: "0" },
    ...{ vocab_size: sizeText("vocab_size"), width_per_block: sizeText("width_per_block") },
  };
}

// {state, error} of an address, "#flops=1e22&..." or the same after a "?"; error: a sentence on settings that there are
// not, or "". Hours take the place of FLOPs.
export function stateFromAddress(address, laws) {
  const settings = [...new URLSearchParams(address.replace(/^[#?]/, "").replaceAll("+", "%2B"))];
  const given = Object.fromEntries(settings.filter(([name]) => NAMES.includes(name)));
  const unknown = settings.filter(([name]) => !NAMES.includes(name)).map(([name]) => `“${name}”`);
  const law = laws.find(({ name }) => name === given.law) ?? laws[0];
  const state = { ...defaultState(law, given.like), ...(given.hours && { flops: "" }), ...given };
  const error = `the address asks for ${unknown.join(", ")}, which this page does not have; it has ${NAMES.join(", ")}`;
  return { state, error: unknown.length ? error : "" };
}

export function addressOf(state, law) {
  const usual = { ...defaultState(law, state.like), like: "" };
  const changed = NAMES.filter((name) => name === "law" || state[name] !== usual[name]);
  const encoded = (text) => encodeURIComponent(text).replace(/%2[CF]/g, decodeURIComponent); // commas and slashes stay
  return `#${changed.map((name) => `${name}=${encoded(state[name])}`).join("&")}`;
}

// [lowest, highest] of a field's slider.
function sliderRange({ name, range }, law) {
  if (range) return range;
  const [low, high] = law.ranges.training_flops ?? [1e17, 1e21];
  const flops = [low / 10, high * 1e5];
  if (name === "flops") return flops;
  const [smallest, largest] = flops.map((budget) => Math.sqrt(budget / 120)); // about the best sizes
  return name === "memory_gb" ? [smallest / 1e9, (60 * largest) / 1e9] : [smallest, 600 * largest];
}

// Where a field's slider, which goes from 0 to 1, stands for a text.
export function sliderPosition(field, law, text) {
  const [low, high] = sliderRange(field, law);
  const value = parsed(text);
  return value > 0 ? Math.log(value / low) / Math.log(high / low) : 0;
}

// The text where a field's slider stands.
export function sliderText(field, law, position) {
  const [low, high] = sliderRange(field, law);
  const value = Number((low * (high / low) ** position).toPrecision(2));
  return typed(field.isInteger ? Math.max(1, Math.round(value)) : Number(general(value, 4)));
}
