// Pictures in SVG: lines with bands, dots, strips and cells over two axes. A cursor goes from stop to stop by pointer or
// by arrow keys and reads them out; a click or Enter chooses one.

import { PlanError } from "./words.js";

const NS = "http://www.w3.org/2000/svg";
const MARGIN = { left: 64, right: 14, top: 10, bottom: 42 };

export const $ = (id) => document.getElementById(id);

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const svg = (name, attributes, ...children) => {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};

// The colour of a number of experts; share 0 is dense, 1 the most experts. The page's style names five stops.
export function colour(share) {
  const at = Math.min(Math.max(share, 0), 1) * 4;
  const stop = Math.min(Math.floor(at), 3);
  return `color-mix(in oklab, var(--e${stop}), var(--e${stop + 1}) ${((at - stop) * 100).toFixed(1)}%)`;
}

const SHAPES = [
  (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`,
  (r) => `M${-r},${-r}H${r}V${r}H${-r}Z`,
  (r) => `M0,${-1.2 * r}L${1.2 * r},${r}H${-1.2 * r}Z`,
  (r) => `M0,${-1.4 * r}L${1.4 * r},0L0,${1.4 * r}L${-1.4 * r},0Z`,
  (r) => `M0,${1.2 * r}L${1.2 * r},${-r}H${-1.2 * r}Z`,
];
const marker = (kind, x, y, r, more) =>
  svg("path", { d: SHAPES[kind % SHAPES.length](r), transform: `translate(${x},${y})`, ...more });

// A small sample of a line and its marker, for legends.
export const sample = (share, kind) =>
  svg(
    "svg",
    { width: 26, height: 12, viewBox: "0 0 26 12", "aria-hidden": "true" },
    svg("path", { d: "M0,6H26", style: `stroke:${colour(share)}`, class: "line" }),
    marker(kind, 13, 6, 3.5, { style: `fill:${colour(share)}` }),
  );

// Ticks within [low, high]: powers of ten, or 1, 2 and 5 times them where these are few; evenly spaced unless log.
function ticks(low, high, log, most) {
  if (log) {
    const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
    const all = (mantissas, step = 1) => {
      const out = [];
      for (let p = Math.ceil(first / step) * step; p <= last; p += step)
        for (const m of mantissas) out.push(m * 10 ** p);
      return out.filter((x) => x >= low * 0.999 && x <= high * 1.001);
    };
    for (const made of [all([1, 2, 5]), all([1, 3]), all([1])]) if (made.length <= most) return made;
    for (let step = 2; ; step++) if (all([1], step).length <= most) return all([1], step);
  }
  const rough = (high - low) / most;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find((m) => m * unit >= rough);
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) out.push(i * step);
  return out;
}

// Decimals that tell the ticks apart.
const decimals = (values) =>
  values.length < 2 ? 3 : Math.max(0, -Math.floor(Math.log10(values[1] - values[0]) + 1e-9));

function scale({ low, high, log }, from, to) {
  const f = log ? Math.log : (x) => x;
  return (x) => from + ((f(x) - f(low)) / (f(high) - f(low))) * (to - from);
}

// Makes the place of a picture: a figure with its caption, the drawing, and what the cursor reads.
export function makePicture(caption, note) {
  const drawing = svg("svg", { class: "drawing", tabindex: "0", role: "img", "aria-label": caption });
  const tip = element("div", { class: "tip", hidden: "" });
  const spoken = element("output", { class: "spoken", "aria-live": "polite" });
  const words = element("span", { class: "note" }, note);
  const canvas = element("div", { class: "canvas" }, drawing, tip);
  const figure = element(
    "figure",
    { class: "picture" },
    element("figcaption", {}, element("b", {}, caption), " ", words),
    canvas,
    spoken,
  );
  const picture = { figure, canvas, drawing, tip, spoken, words, at: null, spec: null };
  const point = (event) => nearest(picture, event);
  drawing.addEventListener("pointermove", (event) => moveTo(picture, point(event)));
  drawing.addEventListener("pointerleave", () => moveTo(picture, null));
  drawing.addEventListener("blur", () => moveTo(picture, null));
  drawing.addEventListener("click", (event) => choose(picture, point(event)));
  drawing.addEventListener("keydown", (event) => onKey(picture, event));
  return picture;
}

const choose = ({ spec }, at) => at != null && spec.choose?.(spec.stops[at]);

function nearest({ drawing, spec, place }, event) {
  if (!spec?.stops?.length) return null;
  const box = drawing.getBoundingClientRect();
  const [px, py] = [event.clientX - box.left, event.clientY - box.top];
  const far = ([x, y]) => (px - x) ** 2 + (spec.across ? 0 : (py - y) ** 2);
  return place.reduce((best, at, i) => (best == null || far(at) < far(place[best]) ? i : best), null);
}

function onKey(picture, event) {
  const { spec, at } = picture;
  if (!spec?.stops?.length) return;
  if (event.key === "Enter" || event.key === " ") choose(picture, at);
  else if (event.key === "Escape") moveTo(picture, null);
  else {
    const row = spec.row ?? 1;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowUp: row, ArrowDown: -row, Home: -1e9, End: 1e9 }[event.key];
    if (step === undefined) return;
    const next = at == null ? (spec.first ?? 0) : Math.min(Math.max(at + step, 0), spec.stops.length - 1);
    moveTo(picture, next, true);
  }
  event.preventDefault();
}

// The cursor at a stop, or nowhere; aloud: to be read out.
function moveTo(picture, at, aloud = false) {
  const { drawing, tip, spoken, spec, place } = picture;
  picture.at = at;
  drawing.querySelector(".cursor")?.remove();
  tip.hidden = at == null;
  if (at == null) return;
  const { text } = spec.stops[at];
  const [x, y] = place[at];
  const mark = svg("g", { class: "cursor" });
  if (spec.across) mark.append(svg("path", { d: `M${x},${MARGIN.top}V${spec.height - MARGIN.bottom}` }));
  for (const [dx, dy] of spec.stops[at].dots ?? [spec.across ? null : [x, y]].filter(Boolean))
    mark.append(svg("circle", { cx: spec.across ? spec.toX(dx) : x, cy: spec.across ? spec.toY(dy) : y, r: 5 }));
  drawing.append(mark);
  tip.textContent = text;
  if (aloud) spoken.textContent = text;
  const left = Math.min(Math.max(x + 12, 4), Math.max(4, spec.width - tip.offsetWidth - 4));
  tip.style.left = `${x + 12 + tip.offsetWidth > spec.width ? Math.max(4, x - 12 - tip.offsetWidth) : left}px`;
  tip.style.top = `${Math.max(0, Math.min(y - tip.offsetHeight - 10, spec.height - tip.offsetHeight))}px`;
}

// Draws a spec:
//   x, y       {low, high, log, label, format}
//   lines      [{share, points: [[x, y]], dashed: [bool of each point], faint: [bool], band: [[x, low, high]]}]
//   dots       [{x, y, share, kind, hollow, ring}]
//   strips     [{from, to, share, label}] along the foot
//   cells      [{x: [from, to], y: [from, to], share, open}], hatched where open; labels [{x, y, text}]; rules [{x}, {y}, {from: [x, y], to: [x, y]}]
//   stops      [{x, y, text, dots}] of the cursor; across: they differ in x alone; row: how many make a row; first
//   choose     what a click does with a stop
export function draw(picture, spec, height = 300) {
  const { drawing } = picture;
  for (const { low, high } of [spec.x, spec.y])
    if (!Number.isFinite(high - low) || low >= high) throw new PlanError("no room on an axis");
  const width = Math.max(260, Math.round(picture.figure.clientWidth || 480));
  const toX = scale(spec.x, MARGIN.left, width - MARGIN.right);
  const toY = scale(spec.y, height - MARGIN.bottom, MARGIN.top);
  Object.assign(spec, { width, height, toX, toY });
  Object.assign(picture, { spec, at: null, place: (spec.stops ?? []).map(({ x, y }) => [toX(x), toY(y)]) });
  picture.tip.hidden = true;
  drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
  drawing.replaceChildren();
  const id = `clip${[...document.querySelectorAll(".drawing")].indexOf(drawing)}`;
  const box = {
    x: MARGIN.left,
    y: MARGIN.top,
    width: width - MARGIN.left - MARGIN.right,
    height: height - MARGIN.top - MARGIN.bottom,
  };
  drawing.append(svg("clipPath", { id }, svg("rect", box)));
  const inside = svg("g", { "clip-path": `url(#${id})` });
  drawAxes(drawing, spec, box);
  drawing.append(inside);
  for (const { x, y, share, open } of spec.cells ?? []) {
    const [x0, x1, y0, y1] = [toX(x[0]), toX(x[1]), toY(y[1]), toY(y[0])];
    const at = { x: x0, y: y0, width: x1 - x0 + 0.6, height: y1 - y0 + 0.6, style: `fill:${colour(share)}` };
    inside.append(svg("rect", at));
    if (open) inside.append(svg("path", { class: "hatch", d: `M${x0},${y1}L${x1},${y0}` }));
  }
  for (const line of spec.lines ?? []) drawLine(inside, line, toX, toY);
  for (const { from, to, share, label } of spec.strips ?? []) drawStrip(inside, toX(from), toX(to), box, share, label);
  for (const rule of spec.rules ?? []) inside.append(svg("path", { class: "rule", d: pathOf(rule, toX, toY, box) }));
  for (const dot of spec.dots ?? []) {
    const look = dot.hollow ? `stroke:${colour(dot.share)};fill:var(--back)` : `fill:${colour(dot.share)}`;
    const kind = dot.ring ? "ring" : dot.hollow ? "hollow" : "dot";
    inside.append(
      marker(dot.kind ?? 0, toX(dot.x), toY(dot.y), dot.r ?? 4, { class: kind, style: dot.ring ? "" : look }),
    );
  }
  for (const { x, y, text } of spec.labels ?? [])
    inside.append(svg("text", { class: "label", x: toX(x), y: toY(y) + 4, "text-anchor": "middle" }, text));
}

function pathOf(rule, toX, toY, box) {
  if (rule.from) return `M${toX(rule.from[0])},${toY(rule.from[1])}L${toX(rule.to[0])},${toY(rule.to[1])}`;
  return rule.x != null ? `M${toX(rule.x)},${box.y}v${box.height}` : `M${box.x},${toY(rule.y)}h${box.width}`;
}

function drawAxes(drawing, { x, y, toX, toY }, box) {
  const axes = svg("g", { class: "axes" });
  const [foot, right] = [box.y + box.height, box.x + box.width];
  const ends = (axis, most) => ticks(axis.low, axis.high, axis.log, most);
  const [xs, ys] = [ends(x, Math.max(3, Math.floor(box.width / 70))), ends(y, 6)];
  const write = (axis, values) => axis.format ?? ((v) => v.toFixed(decimals(values)));
  for (const v of xs)
    axes.append(
      svg("path", { d: `M${toX(v)},${box.y}V${foot}` }),
      svg("text", { x: toX(v), y: foot + 16, "text-anchor": "middle" }, write(x, xs)(v)),
    );
  for (const v of ys)
    axes.append(
      svg("path", { d: `M${box.x},${toY(v)}H${right}` }),
      svg("text", { x: box.x - 6, y: toY(v) + 4, "text-anchor": "end" }, write(y, ys)(v)),
    );
  const middle = box.y + box.height / 2;
  axes.append(
    svg("text", { class: "title", x: (box.x + right) / 2, y: foot + 35, "text-anchor": "middle" }, x.label),
    svg("text", { class: "title", transform: `translate(11,${middle})rotate(-90)`, "text-anchor": "middle" }, y.label),
  );
  drawing.append(axes);
}

// A line in pieces: dashed where the law extrapolates, faint where a limit forbids.
function drawLine(inside, { share, points, dashed = [], faint = [], band }, toX, toY) {
  const at = ([x, y]) => `${toX(x).toFixed(1)},${toY(y).toFixed(1)}`;
  if (band?.length) {
    const up = band.map(([x, , high]) => at([x, high]));
    const down = band.map(([x, low]) => at([x, low])).reverse();
    inside.append(
      svg("path", {
        class: "band",
        d: `M${[...up, ...down].join("L")}Z`,
        style: `fill:${colour(share)}`,
      }),
    );
  }
  for (let i = 0; i + 1 < points.length;) {
    const look = (j) => `${dashed[j] ? " dashed" : ""}${faint[j] ? " faint" : ""}`;
    let j = i + 1;
    while (j + 1 < points.length && look(j) === look(i)) j++;
    const d = `M${points
      .slice(i, j + 1)
      .map(at)
      .join("L")}`;
    inside.append(svg("path", { class: `line${look(i)}`, d, style: `stroke:${colour(share)}` }));
    i = j;
  }
}

function drawStrip(inside, from, to, box, share, label) {
  const [y, height] = [box.y + box.height - 18, 18];
  inside.append(
    svg("rect", { x: from, y, width: to - from, height, style: `fill:${colour(share)}` }),
  );
  if (to - from > 22)
    inside.append(svg("text", { class: "label", x: (from + to) / 2, y: y + 13, "text-anchor": "middle" }, label));
}
