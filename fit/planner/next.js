// Which runs to train next: the page holds what `fit next` answered to several budgets.

import { fill } from "./answers.js";
import { $, element } from "./chart.js";
import { quoted } from "./command.js";
import { typed } from "./numbers.js";

let first; // the law whose runs the page has
let sweep = ""; // the file to download

export const NEXT = ["next_flops", "target_flops"];

// Shows the answer to the budgets of the state.
export function showNext({ data, law, state }, change) {
  first ??= data.laws[0];
  const { answers, why } = data.next ?? {};
  $("next").hidden = !data.next || data.laws.find(({ name }) => name === law.name) !== first;
  if ($("next").hidden) return;
  $("next-found").hidden = !answers;
  if (!answers) return ($("next-summary").textContent = `${why}.`);
  const values = Object.fromEntries(NEXT.map((name) => [name, [...new Set(answers.map((one) => one[name.replace("next_", "")]))]]));
  const usual = { next_flops: values.next_flops.at(-2), target_flops: values.target_flops[0] };
  const asked = Object.fromEntries(NEXT.map((name) => [name, state[name] ? Number(state[name]) : usual[name]]));
  for (const name of NEXT) {
    const options = [...new Set([...values[name], asked[name]])].map((v) => element("option", { value: typed(v) }, typed(v)));
    $(name).replaceChildren(...options);
    $(name).value = typed(asked[name]);
    $(name).onchange = () => change({ [name]: $(name).value });
  }
  const found = answers.find((one) => one.flops === asked.next_flops && one.target_flops === asked.target_flops);
  const nothing = { why: `the page holds answers for ${NEXT.map((name) => `${name} ${values[name].map(typed).join(", ")}`).join(" and ")}` };
  showFound(found ?? nothing, data.next.stages);
  const flags = `--flops=${typed(asked.next_flops)} --target_flops=${typed(asked.target_flops)} --emit_sweep=next.py`;
  $("next-command").textContent = `python -m fit next --law=${quoted(law.name)} --runs=${quoted(data.runs.path)} ${flags}`;
}

function showFound({ why, trunks = [], summary, certainty = [], notes = [], sweep: source, no_sweep }, stages) {
  fill($("next-table"), ["E", "d_model", "blocks", "active", "FLOPs", "tokens"], trunks.map((row) => row.map(String)));
  fill($("certainty"), ["what is expected", ...stages], certainty);
  $("next-summary").textContent = `${why ?? summary}.`;
  $("next-notes").textContent = [...notes, ...(no_sweep ? [no_sweep] : [])].map((text) => `${text}.`).join(" ");
  sweep = source ?? "";
  $("download-next").hidden = !sweep;
}

$("download-next").addEventListener("click", () => {
  const place = URL.createObjectURL(new Blob([sweep], { type: "text/x-python" }));
  element("a", { href: place, download: "next.py" }).click();
  setTimeout(() => URL.revokeObjectURL(place), 1000);
});
