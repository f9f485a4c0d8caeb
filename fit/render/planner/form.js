// The state of the form, texts as typed by the names of their fields. options.js says what it means.

import { data } from "./data.js";

/** The law of a name, else the first one. @type {(name: string) => Law} */
export function lawOf(name) {
  return data.laws.find((law) => law.name === name) ?? data.laws[0];
}

/** The state before anything was typed. like: the model to start from. @type {(law: Law, like?: string) => State} */
export function defaultState(law, like = "") {
  const start = like ? data.published[like]?.defaults : law.example;
  return { law: law.name, like, ...data.defaults, ...law.defaults, ...start };
}

/** The state of an address, "#flops=1e22&..." or the same after a "?". error: a sentence on unknown settings, or "".
 *  @type {(address: string) => {state: State, error: string}} */
export function stateFromAddress(address) {
  const settings = [...new URLSearchParams(address.replace(/^[#?]/, "").replaceAll("+", "%2B"))];
  const typed = Object.fromEntries(settings);
  const law = lawOf(typed.law);
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

/** The address of what differs from the defaults. @type {(state: State) => string} */
export function addressOf(state) {
  const usual = { ...defaultState(lawOf(state.law), state.like), like: "" };
  const changed = Object.keys(usual).filter((name) => name === "law" || state[name] !== usual[name]);
  const encode = (text) => encodeURIComponent(text).replace(/%2[CF]/g, decodeURIComponent); // commas and slashes stay
  return `#${changed.map((name) => `${name}=${encode(state[name])}`).join("&")}`;
}
