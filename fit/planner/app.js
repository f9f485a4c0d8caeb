// The page: its state from the address, fields made once, and answers at every change.

import { showPictures, showPlan } from "./answers.js";
import { $, element } from "./chart.js";
import { showLaws } from "./comparison.js";
import { flopsPerHour } from "./cost.js";
import { watchDrops } from "./drop.js";
import { CHOICES, FIELDS, addressOf, defaultState, sliderPosition, sliderText, stateFromAddress } from "./form.js";
import { PlanError, setTemplates, withErrors } from "./messages.js";
import { amount, general, typed } from "./numbers.js";
import { optionsIn } from "./options.js";
import { planOf } from "./plan.js";

const data = JSON.parse($("data").textContent);
for (const law of data.laws) Object.assign(law, data.forms[law.form]);
setTemplates(data.sentences);
let { state, error: addressError } = stateFromAddress(location.hash || location.search, data.laws);

const currentLaw = () => data.laws.find(({ name }) => name === state.law) ?? data.laws[0];

function makeFields() {
  for (const field of FIELDS) {
    const { name, label } = field;
    const text = element("input", { id: name, name, autocomplete: "off", spellcheck: "false" });
    const range = { type: "range", min: 0, max: 1, step: 0.001, id: `${name}-slider` };
    const slider = element("input", { ...range, "aria-label": `${label}, slider` });
    text.placeholder = field.empty ?? "";
    text.addEventListener("input", () => change({ [name]: text.value }));
    slider.addEventListener("input", () => change({ [name]: sliderText(field, currentLaw(), Number(slider.value)) }));
    $(field.group).append(element("div", { class: "field" }, element("label", { for: name }, label), text, slider));
  }
  for (const { name, form } of data.laws) addChoice("law", name, `${name.split("/").slice(-2).join("/")} (${form})`);
  for (const name of Object.keys(data.published)) addChoice("like", name);
  for (const name of Object.keys(data.chips)) addChoice("chip", name);
  for (const name of ["chip", "experts", "bytes_per_parameter", "bytes_per_kv_element"])
    $(name).addEventListener("input", () => change({ [name]: $(name).value }));
  $("like").addEventListener("input", () => takeReference($("like").value));
  $("law").addEventListener("input", () => takeLaw(data.laws.find(({ name }) => name === $("law").value)));
  $("reset").addEventListener("click", () => change(defaultState(currentLaw())));
}

const addChoice = (id, value, text = value) => $(id).append(element("option", { value }, text));

// Starts from another model: what was typed stays, and defaults become those of the model.
function takeReference(like) {
  const before = defaultState(currentLaw(), state.like);
  const now = defaultState(currentLaw(), like);
  const untouched = Object.entries(now).filter(([name]) => state[name] === before[name]);
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
  history.replaceState(null, "", addressOf(state, currentLaw()));
  renderSoon();
}

let nextFrame = 0;
function renderSoon() {
  cancelAnimationFrame(nextFrame);
  nextFrame = requestAnimationFrame(render);
}

// The state with the budget that follows from the one that was typed.
function withDerivedBudget(options) {
  const derived = { ...state };
  if (!options || options.limits.flops == null) return derived;
  const { flops } = options.limits;
  const rounded = (value) => typed(Number(general(value, 4)));
  if (state.flops === "") derived.flops = rounded(flops);
  if (state.hours === "" && options.chips) derived.hours = rounded(flops / flopsPerHour(data, options.chips));
  return derived;
}

function setUnlessFocused(input, value) {
  if (input !== document.activeElement) input.value = value;
}

function showFields(law, options) {
  const shown = withDerivedBudget(options);
  for (const field of FIELDS) {
    const { name } = field;
    const slider = $(`${name}-slider`);
    setUnlessFocused($(name), shown[name]);
    $(name).classList.toggle("derived", shown[name] !== state[name]);
    setUnlessFocused(slider, sliderPosition(field, law, shown[name]));
    slider.setAttribute("aria-valuetext", shown[name] || "not given");
  }
  for (const name of CHOICES) {
    const { options: choices } = $(name);
    if (choices && ![...choices].some(({ value }) => value === state[name])) addChoice(name, state[name]);
    setUnlessFocused($(name), state[name]);
  }
  const { n_active, n_tokens } = law.ranges;
  const between = (ends) => ends.map(amount).join(" to ");
  $("origin").textContent = law.origin;
  if (n_active && n_tokens)
    $("origin").append(` Fitted to models of ${between(n_active)} active parameters on ${between(n_tokens)} tokens.`);
}

function answerNow() {
  if (addressError) throw new PlanError(addressError);
  const law = currentLaw();
  if (state.law !== law.name) throw new PlanError(`law: this page does not hold “${state.law}”`);
  const options = optionsIn(data, law, state);
  const { plan, limits } = planOf(data, law, options);
  return { data, state, options: { ...options, limits }, plan };
}

// Answers first; what takes longer follows, unless something else was asked meanwhile.
let following = 0;
function render() {
  const answer = withErrors(answerNow, (sentence) => ($("refusal").textContent = sentence));
  showFields(currentLaw(), answer?.options);
  $("refusal").hidden = answer != null;
  $("results").hidden = answer == null;
  clearTimeout(following);
  document.body.setAttribute("aria-busy", String(answer != null));
  if (!answer) return;
  showPlan(answer);
  markWideTables();
  const runs = state.law === data.laws[0].name ? data.runs : null;
  following = setTimeout(() => {
    showLaws(answer);
    following = setTimeout(() => {
      showPictures(answer, runs, change);
      markWideTables();
      document.body.setAttribute("aria-busy", "false");
    });
  });
}

// Marks the tables that have columns beyond their edge.
function markWideTables() {
  for (const box of document.querySelectorAll(".scroll"))
    box.classList.toggle("more", box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
}

function watchCopies() {
  for (const button of document.querySelectorAll("[id^=copy-]"))
    button.addEventListener("click", async () => {
      const text = $(button.id.replace("copy-", "")).textContent;
      const copying = navigator.clipboard.writeText(text);
      button.textContent = await copying.then(() => "Copied", () => "Select and copy by hand");
      setTimeout(() => (button.textContent = "Copy"), 1500);
    });
}

addEventListener("hashchange", () => {
  ({ state, error: addressError } = stateFromAddress(location.hash, data.laws));
  renderSoon();
});
document.addEventListener("scroll", markWideTables, true);
let drawnWidth = innerWidth;
addEventListener("resize", () => {
  if (drawnWidth !== innerWidth) renderSoon(); // a phone changes the height as it scrolls
  drawnWidth = innerWidth;
});

makeFields();
watchCopies();
watchDrops(() => `--law=${state.law} --flops=${state.flops || "1e22"}`);
for (const id of ["form", "intro"]) $(id).open = matchMedia("(min-width: 60rem)").matches;
render();
