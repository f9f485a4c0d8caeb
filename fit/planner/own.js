// Runs of the reader's own: dropped or chosen, drawn over the law, and a law fitted to them.

import { $, element } from "./chart.js";
import { quoted } from "./command.js";
import { fitInWords, fitted } from "./fit.js";
import { TableError, guessed, parseTable, readTable, thinned } from "./table.js";

// What the page needs of them: {runs() to draw, reread() for another law}. page: {data, lawOf, later, take(law): makes it
// the page's law, start(text): takes a config.json}.
export function ownRuns({ data, lawOf, later, take, start }) {
  let table = null; // {rows, names, file, chosen: {ours: theirs}}
  let runs = null; // as the law now chosen reads them

  const say = (text, bad = false) => {
    $("dropped").textContent = text;
    $("dropped").className = bad ? "bad" : "";
  };
  const safely = (f) => {
    try {
      return f();
    } catch (error) {
      if (!(error instanceof TableError)) throw error;
      say(error.message, true);
      return null;
    }
  };

  async function read(file) {
    [table, runs] = [null, null];
    let text = "";
    try {
      text = await file.text();
    } catch (error) {
      return say(`${file.name}: cannot be read: ${error.message}`, true);
    }
    if (/"num_hidden_layers"/.test(text.slice(0, 1e5))) return start(text);
    const parsed = safely(() => parseTable(text, file.name));
    if (parsed) table = { ...parsed, file: file.name, chosen: guessed(parsed.names) };
    showColumns();
    if (table) reread();
    later();
  }

  function reread() {
    if (!table) return;
    runs = safely(() => readTable(table, table.file, lawOf(), table.chosen));
    if (runs) say(`${runs.count} runs of ${table.file}`);
    $("fitting").hidden = !possible().length;
  }

  // The forms whose columns the table has.
  const readAs = (name) => {
    const { columns } = data.forms[name];
    try {
      return readTable(table, table.file, { columns, experts: columns.includes("n_experts") ? [1, 2] : [1] }, table.chosen);
    } catch {
      return null;
    }
  };
  const possible = () => (table ? Object.keys(data.forms).filter((name) => !data.forms[name].believed && readAs(name)) : []);

  // A choice of a column for each that laws read most, and of a form.
  function showColumns() {
    const names = table ? ["", ...table.names] : [];
    const choices = (table ? ["loss", "n_active", "n_tokens", "n_experts", "flops"] : []).map((ours) => {
      const options = names.map((name) => element("option", { value: name }, name || "none"));
      const select = element("select", { id: `column-${ours}` }, ...options);
      select.value = table.chosen[ours] ?? "";
      select.addEventListener("input", () => {
        table.chosen[ours] = select.value || undefined;
        showForms();
        reread();
        later();
      });
      return element("div", { class: "field wide" }, element("label", { for: select.id }, `Column of ${ours}`), select);
    });
    $("columns").replaceChildren(...choices);
    if (table) $("own").open = true;
    showForms();
  }

  function showForms() {
    const forms = possible();
    $("fit-form").replaceChildren(...forms.map((name) => element("option", { value: name }, name)));
    const several = forms.includes("joint") && new Set(readAs("joint").n_experts).size > 1;
    if (forms.length) $("fit-form").value = several ? "joint" : forms.includes("chinchilla") ? "chinchilla" : forms[0];
  }

  async function fit() {
    const [form, of] = [$("fit-form").value, table];
    const measured = readAs(form);
    $("fit").disabled = true;
    $("fit").textContent = "Fitting …";
    const found = await fitted(data, form, measured, of.file, shapeOfAll(of));
    $("fit").disabled = false;
    $("fit").textContent = "Fit it to these runs";
    $("fitted").hidden = false;
    $("fit-words").replaceChildren(
      ...(found ? fitInWords(found) : ["No start led to a law: do the losses fall with size and tokens?"]).map((text) =>
        element("li", {}, text),
      ),
    );
    $("fit-command").textContent = commandOf(form, of);
    if (found) take(found.law);
  }

  // What all runs have in common of these.
  function shapeOfAll({ rows }) {
    const common = ["vocab_size", "width_per_block"].map((name) => [name, [...new Set(rows.map(({ values }) => +values[name]))]]);
    return Object.fromEntries(common.filter(([, all]) => all.length === 1 && all[0] >= 1).map(([name, [one]]) => [name, one]));
  }

  // The same in the shell: the fit of a form, and the speed-up by a law.
  const commandOf = (form, of) =>
    `${onTable("law", data.forms[form], of, ` --form=${form} --weight_decay=0`)} --holdout=compute:rolling --bootstrap=100 --out=law.json`;
  const speedupCommand = (law) => (table ? onTable("speedup", law, table, ` --law=${quoted(law.name)}`) : "");
  function onTable(name, { columns }, { chosen, file, names }, flags) {
    const other = ["loss", ...columns].filter((name) => chosen[name] && chosen[name] !== name);
    const renamed = other.length ? ` ${quoted(`--columns=${other.map((name) => `${name}:${chosen[name]}`).join(",")}`)}` : "";
    const missing = ["n_active", "n_tokens"].filter((name) => columns.includes(name) && !chosen[name] && !names.includes(name));
    const first = missing.map((name) => `# first add a column ${name}, by FLOPs = 6 n_active n_tokens\n`).join("");
    return `${first}python -m fit ${name} --runs=${quoted(file)}${flags}${renamed}`;
  }

  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length) read(event.dataTransfer.files[0]);
  });
  $("file").addEventListener("change", () => $("file").files.length && read($("file").files[0]));
  $("fit").addEventListener("click", fit);
  return { runs: () => thinned(runs), all: () => runs, reread, speedupCommand };
}
