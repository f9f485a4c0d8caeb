// A file that the reader drops on the page or chooses gets the commands that fit it.

import { $ } from "./chart.js";
import { quoted } from "./command.js";

const FIRST = 1e5; // characters of a file that tell what it is

const pageCommand = (law) => `python -m fit page --law=${quoted(law)} --out=planner.html`;

// {sentence, commands} for a file of this name that begins with this text. budget: flags of the law and the FLOPs.
function adviceOn(name, text, budget) {
  const isJson = text.trimStart().startsWith("{");
  if (isJson && text.includes('"num_hidden_layers"')) {
    const commands = [
      `python -m fit plan --like=${quoted(name)} ${budget}`,
      `python -m fit compare --like=${quoted(name)} ${budget.replace(/--law=\S+ /, "")}`,
    ];
    return { sentence: `${name} is a model's config. These commands plan models built like it:`, commands };
  }
  if (isJson && text.includes('"coefficients"')) {
    const sentence = `${name} is a law. This command makes a page that plans with it:`;
    return { sentence, commands: [pageCommand(name)] };
  }
  const runs = `--runs=${quoted(name)}`;
  const commands = [`python -m fit law ${runs} --bootstrap=100 --out=law.json`, `${pageCommand("law.json")} ${runs}`];
  return { sentence: `These commands fit a law to ${name} and make a page with it:`, commands };
}

export function watchDrops(budgetNow) {
  async function read(file) {
    let advice = { sentence: `${file.name} cannot be read`, commands: [] };
    try {
      advice = adviceOn(file.name, await file.slice(0, FIRST).text(), budgetNow());
    } catch (error) {
      advice.sentence += `: ${error.message}`;
    }
    $("dropped").textContent = advice.sentence;
    $("fit-command").textContent = advice.commands.join("\n");
    $("fitted").hidden = !advice.commands.length;
  }
  function readFirst(files) {
    if (files.length) read(files[0]);
  }
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    readFirst(event.dataTransfer.files);
  });
  $("file").addEventListener("change", () => readFirst($("file").files));
}
