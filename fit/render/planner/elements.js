// Elements of the page: found, made and filled.

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

/** Fills a list; an empty one is hidden. @type {(id: string, sentences: string[]) => void} */
export function fillList(id, sentences) {
  byId(id).replaceChildren(...sentences.map((sentence) => element("li", {}, sentence)));
  byId(id).hidden = !sentences.length;
}

const PROSE = 28; // characters of a cell that is read as a sentence

/** Fills a table. columns: {heading: row => text}, the first of them the row's own heading; best: the row to mark.
 *  A row with `why` says in words why there is nothing else.
 *  @type {(id: string, columns: Object<string, (row: object) => string>, rows: object[], best: object) => void} */
export function fillTable(id, columns, rows, best) {
  const headings = Object.keys(columns);
  const [rowHeading, ...cellTexts] = Object.values(columns);
  const lines = rows.map((row) => {
    const texts = row.why ? [`not feasible: ${row.why}`] : cellTexts.map((textOf) => textOf(row));
    const cells = texts.map((text) => element("td", text.length > PROSE ? { class: "words" } : {}, text));
    cells.at(-1).setAttribute("colspan", headings.length - texts.length);
    const mark = row === best ? { class: "best", "aria-label": "best" } : {};
    return element("tr", mark, element("th", { scope: "row" }, rowHeading(row)), ...cells);
  });
  const head = headings.map((heading) => element("th", { scope: "col" }, heading));
  byId(id).replaceChildren(element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...lines));
}
