// A file that the reader drops on the page or chooses: a model's config.json to start from, or a table of runs, for which
// the page shows the commands that fit a law to it.

import { $ } from "./chart.js";
import { quoted } from "./command.js";

const FIRST = 1e5; // characters of a file that tell what it is

// takeConfig(text): starts from the config.json with this text.
export function watchDrops(takeConfig) {
  async function read(file) {
    let text = "";
    try {
      text = await file.slice(0, FIRST).text();
    } catch (error) {
      return show(`${file.name}: cannot be read: ${error.message}`);
    }
    if (/"num_hidden_layers"/.test(text)) {
      show("");
      return takeConfig(await file.text());
    }
    if (/"coefficients"/.test(text) && text.trimStart().startsWith("{"))
      return show(`${file.name} is a law. This command makes a page that plans with it:`, pageOf(file.name));
    const fit = `python -m fit law --runs=${quoted(file.name)} --bootstrap=100 --out=law.json`;
    show(`These commands fit a law to ${file.name} and make a page with it:`, `${fit}\n${pageOf("law.json")} --runs=${quoted(file.name)}`);
  }

  function show(sentence, command = "") {
    $("dropped").textContent = sentence;
    $("fit-command").textContent = command;
    $("fitted").hidden = !command;
  }

  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    if (event.dataTransfer.files.length) read(event.dataTransfer.files[0]);
  });
  $("file").addEventListener("change", () => $("file").files.length && read($("file").files[0]));
}

const pageOf = (law) => `python -m fit page --law=${quoted(law)} --out=planner.html`;
