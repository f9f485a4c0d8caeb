// The page: its state from the address, and answers at every change.

import { showPictures, showPlan } from "./answers.js";
import { showLaws } from "./comparison.js";
import { flopsPerHour } from "./cost.js";
import { PAPER_SHAPE } from "./counts.js";
import { byId, element } from "./elements.js";
import { USUAL, addressOf, defaultState, stateFromAddress } from "./form.js";
import { planCommand } from "./command.js";
import { PlanError, templates, withErrors } from "./messages.js";
import { flagText, general, parseNumber } from "./numbers.js";
import { optionsIn } from "./options.js";
import { planOf } from "./plan.js";
import { refuseEndOfGrid, speedsIn } from "./speeds.js";

const data = JSON.parse(byId("data").textContent);
for (const law of data.laws) Object.assign(law, data.forms[law.form]);
Object.assign(templates, data.sentences);
Object.assign(PAPER_SHAPE, data.paper_shape);
USUAL.mfu = String(data.cost.mfu);
const sliders = [...document.querySelectorAll("input[type=range]")];
let { state, error: addressError } = stateFromAddress(location.hash || location.search, data.laws);

function currentLaw() {
  return data.laws.find(({ name }) => name === state.law) ?? data.laws[0];
}

function addChoice(id, value, text = value) {
  byId(id).append(element("option", { value }, text));
}

function watchFields() {
  for (const { name, form } of data.laws) addChoice("law", name, `${name.split("/").slice(-2).join("/")} (${form})`);
  for (const name of Object.keys(data.published)) addChoice("like", name);
  for (const name of Object.keys(data.chips)) addChoice("chip", name);
  byId("form").addEventListener("input", ({ target }) => {
    if (target.id === "like") takeReference(target.value);
    else if (target.id === "law") takeLaw(data.laws.find(({ name }) => name === target.value));
    else if (sliders.includes(target)) change({ [target.dataset.field]: sliderText(target) });
    else change({ [target.id]: target.value });
  });
  byId("reset").addEventListener("click", () => change(defaultState(currentLaw())));
}

// Starts from another model: what was typed stays, and defaults become those of the model.
function takeReference(like) {
  const before = defaultState(currentLaw(), state.like);
  const after = defaultState(currentLaw(), like);
  const untouched = Object.entries(after).filter(([name]) => state[name] === before[name]);
  change(Object.fromEntries(untouched));
}

// Takes another law with its defaults; the chips and the model stay, and so do hours.
function takeLaw(law) {
  const { chip, chips, mfu, dollars_per_hour, hours, flops, like } = state;
  const budget = hours ? { hours, flops } : {};
  change({ ...defaultState(law, like), chip, chips, mfu, dollars_per_hour, ...budget });
}

// FLOPs and hours are two ways to give one budget: the one typed last counts, the other follows.
function change(changed) {
  const isChanged = (name) => name in changed && changed[name] !== state[name];
  const other = {};
  if (isChanged("flops") && !("hours" in changed)) other.hours = "";
  if (isChanged("hours") && !("flops" in changed)) other.flops = "";
  state = { ...state, ...changed, ...other };
  addressError = "";
  if (location.protocol !== "about:") history.replaceState(null, "", addressOf(state, currentLaw())); // in a notebook
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
  if (state.hours === "" && chips) derived.hours = rounded(limits.flops / flopsPerHour(data, chips));
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
  const law = currentLaw();
  if (state.law !== law.name) throw new PlanError(`law: this page does not hold “${state.law}”`);
  const options = optionsIn(data, law, state);
  if (options.chips && options.chips.mfu == null) {
    Object.assign(options.limits, speedsIn(data, state, options, planCommand(state, options)));
  }
  const { plan, limits, behind_share } = planOf(data, law, options);
  if (limits.speeds) refuseEndOfGrid(limits.speeds, plan);
  return { data, state, options: { ...options, limits }, plan, behind_share };
}

// Answers first; what takes longer follows, unless something else was asked meanwhile.
let following = 0;
function render() {
  const answer = withErrors(answerNow, (sentence) => (byId("refusal").textContent = sentence));
  showFields(currentLaw(), answer);
  byId("refusal").hidden = answer != null;
  byId("results").hidden = answer == null;
  clearTimeout(following);
  document.body.setAttribute("aria-busy", String(answer != null));
  if (!answer) return;
  showPlan(answer);
  follow(remainingSteps(answer));
}

// What takes longer, in steps: a law, then a picture at a time.
function* remainingSteps(answer) {
  yield* showLaws(answer);
  yield* showPictures(answer, state.law === data.laws[0].name ? data.runs : null);
  document.body.setAttribute("aria-busy", "false");
}

// Takes each step in a task of its own, so that the page reacts to a reader in between.
function follow(steps) {
  following = setTimeout(() => {
    if (!steps.next().done) follow(steps);
  });
}

addEventListener("hashchange", () => {
  ({ state, error: addressError } = stateFromAddress(location.hash, data.laws));
  renderSoon();
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
