// The page: its state from the address, and answers at every change.

import { costLines, planLines, sizesLine } from "./answers.js";
import { planCommand } from "./command.js";
import { showLaws } from "./comparison.js";
import { flopsPerHour } from "./cost.js";
import { data } from "./data.js";
import { byId, element, showLines } from "./elements.js";
import { addressOf, defaultState, lawOf, stateFromAddress } from "./form.js";
import { PlanError, withErrors } from "./messages.js";
import { flagText, general, parseNumber } from "./numbers.js";
import { optionsIn } from "./options.js";
import { showPictures } from "./pictures.js";
import { planOf } from "./plan.js";
import { refuseEndOfGrid, speedsIn } from "./speeds.js";

const sliders = [...document.querySelectorAll("input[type=range]")];
let { state, error: addressError } = stateFromAddress(location.hash || location.search);

function addChoice(id, value, text = value) {
  byId(id).append(element("option", { value }, text));
}

function watchFields() {
  for (const { name, form } of data.laws) addChoice("law", name, `${name.split("/").slice(-2).join("/")} (${form})`);
  for (const name of Object.keys(data.published)) addChoice("like", name);
  for (const name of Object.keys(data.chips)) addChoice("chip", name);
  byId("form").addEventListener("input", ({ target }) => {
    if (target.id === "like") take(lawOf(state.law), target.value);
    else if (target.id === "law") take(lawOf(target.value), state.like);
    else if (sliders.includes(target)) change({ [target.dataset.field]: sliderText(target) });
    else change({ [target.id]: target.value });
  });
  byId("reset").addEventListener("click", () => change(defaultState(lawOf(state.law))));
}

// Takes another law, or model to start from: fields that nobody touched take its defaults.
function take(law, like) {
  const before = defaultState(lawOf(state.law), state.like);
  const untouched = Object.entries(defaultState(law, like)).filter(([name]) => state[name] === before[name]);
  change(Object.fromEntries(untouched));
}

// FLOPs and hours are two ways to give one budget: the one typed last counts, the other follows.
function change(changed) {
  const isChanged = (name) => name in changed && changed[name] !== state[name];
  const other = {};
  if (isChanged("flops") && !("hours" in changed)) other.hours = "";
  if (isChanged("hours") && !("flops" in changed)) other.flops = "";
  state = { ...state, ...changed, ...other };
  addressError = "";
  if (location.protocol !== "about:") history.replaceState(null, "", addressOf(state)); // in a notebook
  renderSoon();
}

let nextFrame = 0;
function renderSoon() {
  cancelAnimationFrame(nextFrame);
  nextFrame = requestAnimationFrame(render);
}

// The state with the budget that follows from the one that was typed.
function withDerivedBudget(answer) {
  const derived = { ...state };
  if (!answer) return derived;
  const { chips, limits } = answer.options;
  const rounded = (value) => flagText(Number(general(value, 4)));
  const { training_flops, inference_flops_per_token } = answer.plan.best;
  if (limits.speeds) derived.flops = rounded(training_flops + inference_flops_per_token * limits.inference_tokens);
  if (limits.flops == null) return derived;
  if (state.flops === "") derived.flops = rounded(limits.flops);
  if (state.hours === "" && chips) derived.hours = rounded(limits.flops / flopsPerHour(chips));
  return derived;
}

// A slider shows powers of ten.
function sliderPosition(text) {
  const value = parseNumber(text);
  return value > 0 ? Math.log10(value) : 0;
}

function sliderText({ value, dataset }) {
  const number = Number((10 ** value).toPrecision(2));
  return flagText("whole" in dataset ? Math.max(1, Math.round(number)) : number);
}

function setUnlessFocused(input, value) {
  if (input !== document.activeElement) input.value = value;
}

function showFields(law, answer) {
  const shown = withDerivedBudget(answer);
  for (const name of Object.keys(shown)) {
    const field = byId(name);
    const isMissing = field.options && ![...field.options].some(({ value }) => value === state[name]);
    if (isMissing) addChoice(name, state[name]);
    setUnlessFocused(field, shown[name]);
    field.classList.toggle("derived", shown[name] !== state[name]);
  }
  for (const slider of sliders) {
    const text = shown[slider.dataset.field];
    setUnlessFocused(slider, sliderPosition(text));
    slider.setAttribute("aria-valuetext", text || "not given");
  }
  byId("origin").textContent = law.origin;
}

function answerNow() {
  if (addressError) throw new PlanError(addressError);
  const law = lawOf(state.law);
  if (state.law !== law.name) throw new PlanError(`law: this page does not hold “${state.law}”`);
  const options = optionsIn(law, state);
  const { chips, limits } = options;
  if (chips && chips.mfu == null) Object.assign(limits, speedsIn(options, planCommand(options)));
  const plan = planOf(options);
  if (limits.speeds) refuseEndOfGrid(limits.speeds, plan);
  return { state, options, plan };
}

// Shows the plan in lines, tables and commands.
function showPlan({ options, plan }) {
  showLines("answer", [...planLines(options, plan)]);
  showLines("sizes", [sizesLine(plan)]);
  showLines("costs", costLines(plan));
  const command = planCommand(options);
  byId("command").textContent = command;
  byId("build-command").textContent = `${command} --emit_config=planned.py`;
  byId("json").textContent = JSON.stringify(plan, null, 1);
}

// Answers first; what takes longer follows, unless something else was asked meanwhile.
let following = 0;
let steps = [].values();
function render() {
  const answer = withErrors(answerNow, (sentence) => (byId("refusal").textContent = sentence));
  showFields(lawOf(state.law), answer);
  byId("refusal").hidden = answer != null;
  byId("results").hidden = answer == null;
  clearTimeout(following);
  steps = answer ? remainingSteps(answer) : [].values();
  document.body.setAttribute("aria-busy", String(answer != null));
  if (!answer) return;
  showPlan(answer);
  follow();
}

// The steps that take longer: a law, then a picture at a time.
function* remainingSteps(answer) {
  yield* showLaws(answer);
  yield* showPictures(answer, state.law === data.laws[0].name ? data.runs : null);
  document.body.setAttribute("aria-busy", "false");
}

// Takes steps for as long as a reader does not notice, and again once the page has reacted to what was typed.
function follow() {
  following = setTimeout(() => {
    const end = performance.now() + 30; // milliseconds
    while (performance.now() < end) if (steps.next().done) return;
    follow();
  });
}

addEventListener("hashchange", () => {
  ({ state, error: addressError } = stateFromAddress(location.hash));
  renderSoon();
});
addEventListener("beforeprint", () => {
  while (!steps.next().done); // a printer waits for no task
});
for (const button of document.querySelectorAll("[id^=copy-]")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(byId(button.id.replace("copy-", "")).textContent);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
}
watchFields();
for (const id of ["form", "intro"]) byId(id).open = matchMedia("(min-width: 60rem)").matches;
render();
