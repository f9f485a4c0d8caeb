// Puts a plan on the page: state from the hash, fields and pictures made once, answers at every change.

import { showPictures, showPlan } from "./answers.js";
import { showLaws } from "./beside.js";
import { $, element } from "./chart.js";
import { rateOf } from "./cost.js";
import { limitsAt } from "./counts.js";
import { asked } from "./asked.js";
import { FIELDS, defaults, fromHash, fromSlider, toHash, toSlider } from "./form.js";
import { slim } from "./like.js";
import { amount, digits, typed } from "./numbers.js";
import { planOf } from "./plan.js";
import { watchDrops } from "./drop.js";
import { PlanError, safely, setSentences } from "./words.js";

const data = JSON.parse(document.getElementById("data").textContent);
for (const law of data.laws) Object.assign(law, data.forms[law.form]);
setSentences(data.sentences);
let [state, unknown] = fromHash(location.hash || location.search, data.laws); // unknown: a sentence on what the address has besides
let pasting = false; // whether a config.json is about to be pasted

const lawOf = () => data.laws.find(({ name }) => name === state.law) ?? data.laws[0];
const runsOf = () => (state.law === data.laws[0].name ? data.runs : null);

// The fields.

function makeFields() {
  for (const field of FIELDS) {
    const { name, label } = field;
    const text = element("input", { id: name, name, autocomplete: "off", spellcheck: "false" });
    const slider = element("input", {
      type: "range",
      min: 0,
      max: 1000,
      id: `${name}-slider`,
      "aria-label": `${label}, slider`,
    });
    const empty = [field.first, field.last].find((end) => end?.[0] === "");
    if (empty) text.placeholder = empty[1];
    text.addEventListener("input", () => change({ [name]: text.value }));
    slider.addEventListener("input", () => change({ [name]: fromSlider(field, lawOf(), slider.value) }));
    $(field.group).append(element("div", { class: "field" }, element("label", { for: name }, label), text, slider));
  }
  for (const { name, form } of data.laws)
    $("law").append(element("option", { value: name }, `${name.split("/").slice(-2).join("/")} (${form})`));
  for (const name of Object.keys(data.published)) $("known").append(element("option", { value: name }, name));
  $("known").append(element("option", { value: "{" }, "a config.json of your own"));
  $("known").addEventListener("input", () => {
    pasting = $("known").value === "{";
    start(pasting ? $("config-text").value : $("known").value);
  });
  $("config-text").addEventListener("input", () => start(slim($("config-text").value.trim())));
  for (const name of Object.keys(data.chips)) $("chip").append(element("option", { value: name }, name));
  for (const name of ["chip", "experts", "bytes_per_parameter", "bytes_per_kv_element"])
    $(name).addEventListener("input", () => change({ [name]: $(name).value }));
  $("law").addEventListener("input", () => {
    const { chip, chips, mfu, dollars_per_hour } = state;
    const { hours, like, flops } = state;
    const law = data.laws.find(({ name }) => name === $("law").value);
    const kept = { chip, chips, mfu, dollars_per_hour, ...(hours && { hours, flops }) };
    change({ ...defaults(law, like), ...kept });
  });
  $("reset").addEventListener("click", () => change(defaults(lawOf())));
}

// Takes a model to start from: a published name or a config's text. What was typed stays; defaults become those of it.
function start(like) {
  const [before, now] = [state.like, like].map((name) => defaults(lawOf(), name));
  change(Object.fromEntries(Object.keys(now).map((name) => [name, state[name] === before[name] ? now[name] : state[name]])));
}

// FLOPs, hours and a loss to reach are three ways to give one budget: the one typed last counts, the others follow.
const BUDGETS = ["flops", "hours", "target_loss"];
let flopsNow = null; // of the plan on the page
function change(changed) {
  const last = BUDGETS.find((name) => name in changed && changed[name] !== state[name]);
  if (last === "target_loss" && changed.target_loss.trim() === "") changed = { ...changed, flops: derive(flopsNow) };
  else if (last) changed = { ...Object.fromEntries(BUDGETS.map((name) => [name, ""])), ...changed };
  [state, unknown] = [{ ...state, ...changed }, ""];
  history.replaceState(null, "", toHash(state, lawOf()));
  later();
}

let waiting = 0;
function later() {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(render);
}

function showFields(law, latest) {
  const [derived, ask] = [{ ...state }, latest?.ask];
  if (ask && state.flops === "") derived.flops = derive(flopsNow);
  if (ask?.chips && flopsNow != null && state.hours === "")
    derived.hours = derive(flopsNow / 3600 / rateOf(data, ask.chips, latest.plan.best.n_experts));
  for (const field of FIELDS) {
    const [text, slider] = [$(field.name), $(`${field.name}-slider`)];
    if (text !== document.activeElement) text.value = derived[field.name];
    text.classList.toggle("derived", derived[field.name] !== state[field.name]);
    if (slider !== document.activeElement) slider.value = toSlider(field, law, derived[field.name]);
    const end = +slider.value === 0 ? field.first : +slider.value === 1000 ? field.last : null;
    slider.setAttribute("aria-valuetext", end?.[1] ?? (derived[field.name] || "not given"));
  }
  for (const name of ["law", "chip", "bytes_per_parameter", "bytes_per_kv_element"]) {
    if (![...$(name).options].some(({ value }) => value === state[name]))
      $(name).append(element("option", { value: state[name] }, state[name]));
    $(name).value = state[name];
  }
  const written = pasting || state.like.trim().startsWith("{") || (state.like && !(state.like in data.published));
  if ($("known") !== document.activeElement) $("known").value = written ? "{" : state.like;
  $("config-text").hidden = $("known").value !== "{";
  if ($("config-text") !== document.activeElement) $("config-text").value = written ? state.like : "";
  if ($("experts") !== document.activeElement) $("experts").value = state.experts;
  $("origin").textContent = `${law.origin} ${fittedTo(law)}`.trim();
  showChoices(law);
}

function fittedTo({ ranges }) {
  const { n_active, n_tokens } = ranges;
  if (!n_active || !n_tokens) return "";
  const between = (ends) => ends.map(amount).join(" to ");
  return `Fitted to models of ${between(n_active)} active parameters on ${between(n_tokens)} tokens.`;
}

const derive = (value) => (value != null && Number.isFinite(value) ? typed(+digits(value, 4)) : "");

// A button for each usual number of experts.
function showChoices(law) {
  const now = new Set(state.experts.split(",").map(Number));
  const usual = law.knows_experts ? [...new Set([...law.experts, 1, 2, 4, 8, 16, 32, 64, 128])] : law.experts;
  const buttons = usual
    .sort((a, b) => a - b)
    .map((e) => {
      const button = element("button", { type: "button", "aria-pressed": String(now.has(e)) }, String(e));
      button.addEventListener("click", () => {
        const next = now.has(e) ? [...now].filter((other) => other !== e) : [...now, e];
        if (next.length) change({ experts: next.sort((a, b) => a - b).join(",") });
      });
      return button;
    });
  const focused = [...$("choices").children].indexOf(document.activeElement);
  $("choices").replaceChildren(...buttons);
  buttons[focused]?.focus();
}

// The answers.

// Answers first; what takes longer follows, unless something else was asked meanwhile.
let following = 0;
function render() {
  const law = lawOf();
  const solve = () => {
    if (unknown) throw new PlanError(unknown);
    if (state.law !== law.name) throw new PlanError(`law: this page does not hold “${state.law}”`);
    const ask = { data, law, state, ...asked(data, law, state) };
    const [read, limits, plan] = planOf(data, law, ask);
    return { ask: { ...ask, law: read, limits }, plan };
  };
  const latest = safely(solve, (sentence) => ($("refusal").textContent = sentence));
  flopsNow = latest ? limitsAt(latest.ask.limits, latest.plan.best.n_experts).flops : null;
  showFields(law, latest);
  $("refusal").hidden = latest != null;
  $("results").hidden = latest == null;
  clearTimeout(following);
  document.body.setAttribute("aria-busy", String(latest != null));
  if (latest) {
    showPlan(latest);
    following = setTimeout(() => {
      showLaws(latest);
      following = setTimeout(() => {
        showPictures(latest, runsOf(), change);
        document.body.setAttribute("aria-busy", "false");
      });
    });
  }
  showHidden();
}

for (const name of ["command", "compare", "laws-json", "json", "build-command", "fit-command"])
  $(`copy-${name}`).addEventListener("click", async () => {
    const button = $(`copy-${name}`);
    button.textContent = (await copied($(name).textContent)) ? "Copied" : "Select and copy by hand";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea", {}, text);
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

addEventListener("hashchange", () => {
  [state, unknown] = fromHash(location.hash, data.laws);
  later();
});

// What does not fit is said: columns beyond the edge of a table.
function showHidden() {
  for (const box of document.querySelectorAll(".scroll"))
    box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
}
document.addEventListener("scroll", showHidden, true);
addEventListener("resize", showHidden);

let width = 0;
new ResizeObserver(() => {
  if (width !== $("pictures").clientWidth) later();
  width = $("pictures").clientWidth;
}).observe($("pictures"));

makeFields();
watchDrops((text) => start(slim(text)));
for (const id of ["form", "intro"]) $(id).open = matchMedia("(min-width: 60rem)").matches;
render();
