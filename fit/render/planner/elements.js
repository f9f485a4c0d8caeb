// Elements of the page: found, made and filled.

import { flagOf } from "./options.js";

/** The element of an id. @type {(id: string) => HTMLElement} */
export function byId(id) {
  return document.getElementById(id);
}

function withContent(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** A new element. @type {(name: string, attributes?: object, ...children: (Node|string)[]) => HTMLElement} */
export function element(name, attributes = {}, ...children) {
  return withContent(document.createElement(name), attributes, children);
}

/** A new part of a drawing. @type {(name: string, attributes: object, ...children: (Node|string)[]) => Element} */
export function svg(name, attributes, ...children) {
  return withContent(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

/** Shows the lines of an answer in an element: label and value as a paragraph, and below it the detail, a table. A
 *  section without lines is hidden.
 *  @type {(id: string, lines: Line[]) => void} */
export function showLines(id, lines) {
  byId(id).replaceChildren(...lines.flatMap(elementsOf));
  byId(id).parentElement.hidden = !lines.length;
}

function elementsOf({ label = "", value = "", detail }) {
  const made = [];
  if (value) {
    const head = label && label !== "warning" ? [element("b", {}, label), ": "] : [];
    made.push(element("p", { "data-label": label }, ...head, withFields(value)));
  }
  if (detail) {
    const hint = "more columns: scroll the table sideways →";
    made.push(element("div", { class: "scroll" }, tableOf(detail)));
    made.push(element("p", { class: "hint soft", "aria-hidden": "true" }, hint));
  }
  return made;
}

// A sentence of the command line with the names of the page's fields in place of the flags.
function withFields(sentence) {
  let text = sentence;
  for (const { htmlFor, textContent } of document.querySelectorAll("label")) {
    text = text.replaceAll(new RegExp(`--${flagOf(htmlFor)}\\b`, "g"), `“${textContent}”`);
  }
  return text.replaceAll("--shape=", ""); // of a field that the page does not have
}

const PROSE = 28; // characters of a cell that is read as a sentence

// A table. columns: {heading: row => text}, the first of them the row's own heading; best: the row to mark. A row with
// `why` says in words why there is nothing else.
function tableOf({ columns, rows, best }) {
  const headings = Object.keys(columns);
  const [rowHeading, ...cellTexts] = Object.values(columns);
  const lines = rows.map((row) => {
    const texts = row.why ? [`not feasible: ${withFields(row.why)}`] : cellTexts.map((textOf) => textOf(row));
    const cells = texts.map((text) => element("td", text.length > PROSE ? { class: "words" } : {}, text));
    cells.at(-1).setAttribute("colspan", headings.length - texts.length);
    const mark = row === best ? { class: "best", "aria-label": "best" } : {};
    return element("tr", mark, element("th", { scope: "row" }, rowHeading(row)), ...cells);
  });
  const head = headings.map((heading) => element("th", { scope: "col" }, heading));
  return element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...lines));
}
