// The state of the form, texts as typed by the names of their fields. options.js says what it means.

import { flagText } from "./numbers.js";

/** What fields hold that neither a law nor a model says; app.js fills it in. @type {{mfu: string}} */
export const USUAL = { mfu: "" };

/** The state before anything was typed. like: the model to start from. @type {(law: Law, like?: string) => State} */
export function defaultState(law, like = "") {
  const isPaper = law.form === "joint" && law.published && !like;
  const beyondRuns = 3 * (law.ranges.training_flops?.[1] ?? 1e21);
  const flops = isPaper ? 1e22 : Number(beyondRuns.toPrecision(1));
  const sizeText = (name) => (typeof law.shape[name] === "number" ? String(law.shape[name]) : "");
  return {
    law: law.name,
    like,
    experts: law.experts.join(","),
    flops: flagText(flops),
    hours: "",
    chip: law.chips.kind,
    chips: String(law.chips.count),
    mfu: USUAL.mfu,
    dollars_per_hour: "2",
    memory_gb: isPaper ? "80" : "",
    devices: "1",
    context: isPaper ? "16384" : "0",
    sequences: "1",
    serve_tokens_per_second: "",
    bytes_per_parameter: "2",
    bytes_per_kv_element: "2",
    inference_tokens: "0",
    max_tokens: "",
    vocab_size: sizeText("vocab_size"),
    width_per_block: sizeText("width_per_block"),
  };
}

/** The state of an address, "#flops=1e22&..." or the same after a "?". error: a sentence on unknown settings, or "".
 *  @type {(address: string, laws: Law[]) => {state: State, error: string}} */
export function stateFromAddress(address, laws) {
  const settings = [...new URLSearchParams(address.replace(/^[#?]/, "").replaceAll("+", "%2B"))];
  const typed = Object.fromEntries(settings);
  const law = laws.find(({ name }) => name === typed.law) ?? laws[0];
  const state = defaultState(law, typed.like);
  const names = Object.keys(state);
  if (typed.hours) state.flops = ""; // hours take the place of FLOPs
  const unknown = [];
  for (const [name, text] of settings) {
    if (names.includes(name)) state[name] = text;
    else unknown.push(`“${name}”`);
  }
  const asked = `the address asks for ${unknown.join(", ")}, which this page does not have`;
  const error = unknown.length ? `${asked}; it has ${names.join(", ")}` : "";
  return { state, error };
}

/** The address of what differs from the defaults. @type {(state: State, law: Law) => string} */
export function addressOf(state, law) {
  const usual = { ...defaultState(law, state.like), like: "" };
  const changed = Object.keys(usual).filter((name) => name === "law" || state[name] !== usual[name]);
  const encode = (text) => encodeURIComponent(text).replace(/%2[CF]/g, decodeURIComponent); // commas and slashes stay
  return `#${changed.map((name) => `${name}=${encode(state[name])}`).join("&")}`;
}
