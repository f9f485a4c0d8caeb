// Puts a plan on the page: state from the hash, fields and pictures made once, answers at every change.

import { element, makePicture, sample } from "./chart.js";
import { config } from "./config.js";
import { FIELDS, asked, command, defaults, fromHash, fromSlider, hourOf, toHash, toSlider } from "./form.js";
import { amount, digits, duration, fixed, memoryText, parsed, typed } from "./numbers.js";
import { againstMemory, gains, isoflop, looksOf, map, measured } from "./pictures.js";
import { planFor } from "./plan.js";
import { readTable, TableError } from "./table.js";
import { PlanError, answer, builtInWords, compared, drawn, inWords, setSentences } from "./words.js";

const data = JSON.parse(document.getElementById("data").textContent);
setSentences(data.sentences);
const $ = (id) => document.getElementById(id);
let state = fromHash(location.hash, data.laws);
let dropped = null; // the runs of a table that was dropped
let latest = null; // {ask, plan} on the page

const lawOf = () => data.laws.find(({ name }) => name === state.law);
const runsOf = () => dropped ?? (state.law === data.laws[0].name ? data.runs : null);

const pictures = {
  isoflop: makePicture("Loss against size"),
  memory: makePicture("Loss against memory"),
  map: makePicture("The best number of experts"),
  measured: makePicture("Predicted against measured"),
};
$("pictures").append(
  ...Object.values(pictures).map(({ figure }) => figure),
  element("figure", {}, element("figcaption", {}, element("b", {}, "What twice as much would gain")), element("div", { id: "gains" })),
);

// The fields.

function makeFields() {
  for (const field of FIELDS) {
    const { name, label } = field;
    const text = element("input", { id: name, name, autocomplete: "off", spellcheck: "false" });
    const slider = element("input", { type: "range", min: 0, max: 1000, id: `${name}-slider`, "aria-label": `${label}, slider` });
    if (field.last) text.placeholder = field.last[1];
    text.addEventListener("input", () => change({ [name]: text.value }));
    slider.addEventListener("input", () => change({ [name]: fromSlider(field, lawOf(), slider.value) }));
    $(field.group).append(element("div", { class: "field" }, element("label", { for: name }, label), text, slider));
  }
  for (const { name, form } of data.laws) $("law").append(element("option", { value: name }, `${name.split("/").slice(-2).join("/")} (${form})`));
  for (const name of Object.keys(data.chips)) $("chip").append(element("option", { value: name }, name));
  for (const name of ["chip", "experts", "bytes_per_parameter", "bytes_per_kv_element"])
    $(name).addEventListener("input", () => change({ [name]: $(name).value }));
  $("law").addEventListener("input", () => {
    const { chip, chips, mfu, dollars_per_hour } = state;
    change({ ...defaults(data.laws.find(({ name }) => name === $("law").value)), chip, chips, mfu, dollars_per_hour });
  });
  $("reset").addEventListener("click", () => change(defaults(lawOf())));
}

// Hours and FLOPs are one budget: the one typed last counts, the other follows.
function change(changed) {
  if ("hours" in changed && !("flops" in changed)) changed.flops = "";
  if ("flops" in changed && !("hours" in changed)) changed.hours = "";
  state = { ...state, ...changed };
  history.replaceState(null, "", toHash(state, lawOf()));
  later();
}

let waiting = 0;
function later() {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(render);
}

function showFields(law) {
  const hour = safely(() => hourOf(data, state));
  const derived = { ...state };
  if (hour && state.hours === "") derived.hours = derive(parsed(state.flops) / hour.flops);
  if (hour && state.hours !== "") derived.flops = derive(parsed(state.hours) * hour.flops);
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

const derive = (value) => (Number.isFinite(value) ? typed(+digits(value, 4)) : "");

function safely(f) {
  try {
    return f();
  } catch (error) {
    if (error instanceof PlanError) return null;
    throw error;
  }
}

// A button for each usual number of experts.
function showChoices(law) {
  const now = new Set(state.experts.split(",").map(Number));
  const usual = law.knows_experts ? [...new Set([...law.experts, 1, 2, 4, 8, 16, 32, 64, 128])] : [1];
  const buttons = usual.sort((a, b) => a - b).map((e) => {
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

function render() {
  const law = lawOf();
  showFields(law);
  let ask;
  try {
    ask = { data, law, ...asked(data, law, state) };
    const plan = planFor(data, law, ask.shape, ask.limits, ask.experts);
    latest = { ask, plan };
  } catch (error) {
    if (!(error instanceof PlanError)) throw error;
    latest = null;
    $("refusal").textContent = error.message;
  }
  $("refusal").hidden = latest != null;
  $("results").hidden = latest == null;
  if (latest == null) return;
  showAnswer(latest);
  showTable(latest);
  showPictures(latest);
  showCopies(latest);
}

function items(list, sentences) {
  list.replaceChildren(...sentences.map((sentence) => element("li", {}, sentence)));
  list.hidden = !sentences.length;
}

function showAnswer({ ask, plan }) {
  const { best } = plan;
  $("answer").textContent = answer(plan);
  items($("warnings"), plan.warnings);
  const tiles = [
    [String(best.n_experts), "experts"],
    [amount(best.n_active), "active parameters"],
    [amount(best.n_total), "parameters in total"],
    [amount(best.n_tokens), "training tokens"],
    [fixed(best.loss, 4), "loss, nats per token"],
    [memoryText(best.memory_bytes), "weights and cache"],
  ];
  const hour = safely(() => hourOf(data, state));
  if (hour) {
    const hours = best.training_flops / hour.flops;
    const dollars = hours * hour.dollars;
    tiles.push([hours < 1 / 3600 ? "< 1 s" : duration(hours), `of training on ${amount(hour.chips)} × ${state.chip}`]);
    if (hour.dollars != null) tiles.push([dollars < 0.01 ? "< 1 cent" : `$${amount(dollars)}`, "of training"]);
  }
  $("tiles").replaceChildren(...tiles.map(([value, what]) => element("div", {}, element("dd", {}, value), element("dt", {}, what))));
  items($("built"), plan.buildable ? builtInWords(plan.buildable) : ["no model of whole blocks meets the limits"]);
  items($("compared"), compared(plan));
  $("draws").textContent = plan.bootstrap ? `${drawn(ask.law, plan.bootstrap).replace(/:$/, "")}.` : "";
}

const limitedBy = { memory: "memory", tokens: "tokens", smallest: "smallest model" };

function showTable({ plan }) {
  const drawn = new Map((plan.bootstrap?.optima ?? []).map((row) => [row.n_experts, row]));
  const between = (values, write) => (values ? values.map(write).join(" to ") : "–");
  const head = ["E", "active", "total", "tokens", "loss", "memory", "active within 0.1% of the best", "bound by"];
  if (plan.bootstrap) head.splice(5, 0, "loss, interval", "best in");
  const outside = plan.optima.map((row) => inWords(row.extrapolation.filter(({ column }) => column !== "training_flops")));
  if (outside.some(Boolean)) head.push("outside the fitted range");
  const lines = plan.optima.map((row, i) => {
    const cells = [amount(row.n_active), amount(row.n_total), amount(row.n_tokens), fixed(row.loss, 4)];
    const of = drawn.get(row.n_experts);
    if (plan.bootstrap) cells.push(between(of?.loss, (v) => fixed(v, 4)), of ? `${of.best_in_draws} of ${plan.bootstrap.draws}` : "–");
    cells.push(memoryText(row.memory_bytes), between(row.near_optimal_n_active, amount), limitedBy[row.size_bound] ?? "–");
    const best = row === plan.best ? { class: "best", "aria-label": "best" } : {};
    const line = element("tr", best, element("th", { scope: "row" }, String(row.n_experts)), ...cells.map((cell) => element("td", {}, cell)));
    if (outside.some(Boolean)) line.append(element("td", { class: "words" }, outside[i]));
    return line;
  });
  for (const { n_experts, why } of plan.infeasible) {
    const cell = element("td", { colspan: head.length - 1, class: "words" }, `not feasible: ${why}`);
    lines.push(element("tr", {}, element("th", { scope: "row" }, String(n_experts)), cell));
  }
  $("table").replaceChildren(
    element("thead", {}, element("tr", {}, ...head.map((word) => element("th", { scope: "col" }, word)))),
    element("tbody", {}, ...lines),
  );
}

function showPictures({ ask, plan }) {
  const runs = runsOf();
  const experts = [...new Set([...ask.law.experts, ...ask.experts, ...(runs?.n_experts ?? [])])].sort((a, b) => a - b);
  const looks = looksOf(experts);
  const legend = ask.experts.map((e) => element("li", {}, sample(looks[e].share, looks[e].kind), `E = ${e}`));
  $("legend").replaceChildren(...legend);
  const choose = ({ flops, bytes }) => change({
    ...(flops ? { flops: typed(+flops.toPrecision(3)) } : {}),
    memory_gb: typed(+(bytes / 1e9 / ask.devices).toPrecision(3)),
  });
  put(pictures.isoflop, () => isoflop(pictures.isoflop, ask, plan, looks, runs));
  put(pictures.memory, () => againstMemory(pictures.memory, ask, plan, looks, choose));
  put(pictures.map, () => map(pictures.map, ask, looks, choose));
  pictures.measured.figure.hidden = !runs;
  if (runs) put(pictures.measured, () => measured(pictures.measured, ask, looks, runs));
  const rows = gains(ask, plan);
  const most = Math.max(...rows.map(({ gain }) => gain ?? 0), 1e-12);
  $("gains").replaceChildren(...rows.flatMap(({ name, gain, best }) => {
    const bar = element("i", { style: `width:${gain == null ? 0 : (100 * gain) / most}%` });
    const words = gain == null ? "is no limit" : `${fixed(gain, 4)} nats lower` +
      (best.n_experts === plan.best.n_experts ? "" : `, then E = ${best.n_experts}`);
    return [element("span", {}, `twice the ${name}`), element("span", { class: "bar" }, bar), element("span", {}, words)];
  }));
}

// A picture with its note; what cannot be drawn says why instead.
function put(picture, drawIt) {
  const note = safely(drawIt) ?? "cannot be drawn for these limits";
  picture.words.textContent = note;
}

function showCopies({ ask, plan }) {
  const said = safely(() => config(data, ask.law, plan));
  let refused = "";
  if (said == null) try { config(data, ask.law, plan); } catch (error) { refused = error.message; }
  $("command").textContent = command(ask.law, state, ask);
  $("json").textContent = JSON.stringify(plan, null, 1);
  $("config").textContent = said ?? refused;
  $("copy-config").hidden = said == null;
}

for (const name of ["command", "json", "config"])
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

// Runs that are dropped or chosen.

async function take(file) {
  try {
    dropped = readTable(await file.text(), file.name, lawOf());
    $("dropped").textContent = `${dropped.count} runs of ${dropped.file}`;
    $("dropped").className = "";
  } catch (error) {
    if (!(error instanceof TableError)) throw error;
    dropped = null;
    $("dropped").textContent = error.message;
    $("dropped").className = "bad";
  }
  later();
}

addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  if (event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
});
$("file").addEventListener("change", () => $("file").files.length && take($("file").files[0]));
addEventListener("hashchange", () => {
  state = fromHash(location.hash, data.laws);
  later();
});
let width = 0;
new ResizeObserver(() => {
  if (width !== $("pictures").clientWidth) later();
  width = $("pictures").clientWidth;
}).observe($("pictures"));

makeFields();
$("form").open = matchMedia("(min-width: 60rem)").matches;
render();
