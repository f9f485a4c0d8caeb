// Pictures in SVG: lines, dots and strips over two axes. A cursor goes from stop to stop by pointer or by
// arrow keys and reads them out; a click or Enter chooses one.

import { PlanError } from "./messages.js";

const HEIGHT = 300;
const MARGIN = { left: 64, right: 14, top: 10, bottom: 42 };

export const $ = (id) => document.getElementById(id);

function withContent(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export const element = (name, attributes = {}, ...children) =>
  withContent(document.createElement(name), attributes, children);

const svg = (name, attributes, ...children) =>
  withContent(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);

// The colour of a number of experts; share 0 is dense, 1 the most experts. The page's style names five stops.
export function colourOf(share) {
  const at = Math.min(Math.max(share, 0), 1) * 4;
  const stop = Math.min(Math.floor(at), 3);
  return `color-mix(in oklab, var(--e${stop}), var(--e${stop + 1}) ${((at - stop) * 100).toFixed(1)}%)`;
}

// Ticks of a log axis: powers of ten, with 2 and 5 times them where these are few.
function logTicks({ low, high }, most) {
  const decades = Math.log10(high / low);
  const mantissas = 3 * decades <= most ? [1, 2, 5] : [1];
  const step = Math.ceil(decades / most);
  const ticks = [];
  for (let power = Math.floor(Math.log10(low) / step) * step; 10 ** power <= high; power += step)
    ticks.push(...mantissas.map((mantissa) => mantissa * 10 ** power));
  return ticks.filter((x) => x >= low && x <= high);
}

function linearTicks({ low, high }, most) {
  const unit = 10 ** Math.floor(Math.log10((high - low) / most));
  const step = unit * [1, 2, 5, 10].find((multiple) => multiple * unit * most >= high - low);
  const ticks = [];
  for (let i = Math.ceil(low / step); i * step <= high; i++) ticks.push(i * step);
  return ticks;
}

// The place on the page of a value of an axis.
function scaleOf({ low, high, isLog }, from, to) {
  const transform = isLog ? Math.log : (x) => x;
  const span = transform(high) - transform(low);
  return (x) => from + ((transform(x) - transform(low)) / span) * (to - from);
}

// Makes the place of a picture: a figure with its caption, the drawing, and what the cursor reads.
export function makePicture(caption) {
  const drawing = svg("svg", { class: "drawing", tabindex: "0", role: "img", "aria-label": caption });
  const tip = element("div", { class: "tip", hidden: "" });
  const spoken = element("output", { class: "spoken", "aria-live": "polite" });
  const note = element("span", { class: "note" });
  const canvas = element("div", { class: "canvas" }, drawing, tip);
  const title = element("figcaption", {}, element("b", {}, caption), " ", note);
  const figure = element("figure", { class: "picture" }, title, canvas, spoken);
  const picture = { figure, canvas, drawing, tip, spoken, note, stop: null, spec: null };
  drawing.addEventListener("pointermove", (event) => moveCursor(picture, nearestStop(picture, event)));
  drawing.addEventListener("pointerleave", () => moveCursor(picture, null));
  drawing.addEventListener("blur", () => moveCursor(picture, null));
  drawing.addEventListener("click", (event) => choose(picture, nearestStop(picture, event)));
  drawing.addEventListener("keydown", (event) => onKey(picture, event));
  return picture;
}

function choose({ spec }, stop) {
  if (stop != null) spec.choose?.(spec.stops[stop]);
}

function nearestStop({ drawing, spec }, event) {
  const x = event.clientX - drawing.getBoundingClientRect().left;
  const distances = spec.stops.map((stop) => Math.abs(spec.toX(stop.x) - x));
  return distances.indexOf(Math.min(...distances));
}

const KEY_STEPS = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };

function onKey(picture, event) {
  const { spec, stop } = picture;
  if (event.key === "Enter" || event.key === " ") choose(picture, stop);
  else if (event.key === "Escape") moveCursor(picture, null);
  else if (event.key in KEY_STEPS) {
    const next = stop == null ? spec.first : stop + KEY_STEPS[event.key];
    moveCursor(picture, Math.min(Math.max(next, 0), spec.stops.length - 1));
    picture.spoken.textContent = picture.tip.textContent;
  } else return;
  event.preventDefault();
}

// Puts the cursor at a stop, or nowhere.
function moveCursor(picture, stop) {
  const { drawing, tip, spec } = picture;
  picture.stop = stop;
  drawing.querySelector(".cursor")?.remove();
  tip.hidden = stop == null;
  if (stop == null) return;
  const { x, losses, text } = spec.stops[stop];
  const at = spec.toX(x);
  const line = svg("path", { d: `M${at},${MARGIN.top}V${HEIGHT - MARGIN.bottom}` });
  const circles = losses.map((loss) => svg("circle", { cx: at, cy: spec.toY(loss), r: 5 }));
  drawing.append(svg("g", { class: "cursor" }, line, ...circles));
  tip.textContent = text;
  const fitsRight = at + 12 + tip.offsetWidth <= drawing.clientWidth;
  tip.style.left = `${fitsRight ? at + 12 : Math.max(4, at - 12 - tip.offsetWidth)}px`;
  tip.style.top = `${MARGIN.top}px`;
}

// Draws a spec:
//   x, y    {low, high, isLog, label, format}
//   lines   [{share, points: [{x, y, isOutside, isTooLarge}]}]
//   dots    [{x, y, share, r, kind: "dot", "hollow" or "ring"}]
//   strips  [{from, to, share, label}] along the foot
//   rule    where a vertical line stands, or null
//   stops   [{x, losses, text}] of the cursor; first: where it starts; choose: what a click does with a stop
export function draw(picture, spec) {
  const { drawing } = picture;
  for (const { low, high } of [spec.x, spec.y])
    if (!Number.isFinite(high - low) || low >= high) throw new PlanError("no room on an axis");
  const width = Math.max(260, Math.round(picture.figure.clientWidth || 480));
  const box = { x: MARGIN.left, y: MARGIN.top, width: width - MARGIN.left - MARGIN.right };
  box.height = HEIGHT - MARGIN.top - MARGIN.bottom;
  spec.toX = scaleOf(spec.x, box.x, box.x + box.width);
  spec.toY = scaleOf(spec.y, box.y + box.height, box.y);
  picture.spec = spec;
  picture.stop = null;
  picture.tip.hidden = true;
  drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  const id = `clip-${picture.drawing.getAttribute("aria-label").replaceAll(" ", "-")}`;
  const inside = svg("g", { "clip-path": `url(#${id})` });
  drawing.replaceChildren(svg("clipPath", { id }, svg("rect", box)), axesOf(spec, box), inside);
  for (const line of spec.lines) inside.append(...pathsOf(line, spec));
  for (const strip of spec.strips) inside.append(...stripOf(strip, spec, box));
  if (spec.rule != null)
    inside.append(svg("path", { class: "rule", d: `M${spec.toX(spec.rule)},${box.y}v${box.height}` }));
  for (const { x, y, share, r, kind } of spec.dots) {
    const colour = colourOf(share);
    const style = { dot: `fill:${colour}`, hollow: `stroke:${colour};fill:var(--back)`, ring: "" }[kind];
    inside.append(svg("circle", { cx: spec.toX(x), cy: spec.toY(y), r, class: kind, style }));
  }
}

function axesOf({ x, y, toX, toY }, box) {
  const ticksOf = (axis, most) => (axis.isLog ? logTicks(axis, most) : linearTicks(axis, most));
  const axes = svg("g", { class: "axes" });
  const foot = box.y + box.height;
  for (const value of ticksOf(x, Math.max(3, Math.floor(box.width / 70)))) {
    const text = svg("text", { x: toX(value), y: foot + 16, "text-anchor": "middle" }, x.format(value));
    axes.append(svg("path", { d: `M${toX(value)},${box.y}V${foot}` }), text);
  }
  for (const value of ticksOf(y, 6)) {
    const text = svg("text", { x: box.x - 6, y: toY(value) + 4, "text-anchor": "end" }, y.format(value));
    axes.append(svg("path", { d: `M${box.x},${toY(value)}h${box.width}` }), text);
  }
  const title = { class: "title", "text-anchor": "middle" };
  const turned = `translate(11,${box.y + box.height / 2})rotate(-90)`;
  axes.append(svg("text", { ...title, x: box.x + box.width / 2, y: foot + 35 }, x.label));
  axes.append(svg("text", { ...title, transform: turned }, y.label));
  return axes;
}

// A line in pieces: dashed where the law extrapolates, faint where a limit forbids.
function pathsOf({ share, points }, { toX, toY }) {
  const place = (x, y) => `${toX(x).toFixed(1)},${toY(y).toFixed(1)}`;
  const paths = [];
  let path = null;
  points.slice(0, -1).forEach((point, i) => {
    const look = `line${point.isOutside ? " dashed" : ""}${point.isTooLarge ? " faint" : ""}`;
    if (path?.getAttribute("class") !== look) {
      path = svg("path", { class: look, d: `M${place(point.x, point.y)}`, style: `stroke:${colourOf(share)}` });
      paths.push(path);
    }
    path.setAttribute("d", `${path.getAttribute("d")}L${place(points[i + 1].x, points[i + 1].y)}`);
  });
  return paths;
}

function stripOf({ from, to, share, label }, { toX }, box) {
  const height = 18;
  const y = box.y + box.height - height;
  const width = toX(to) - toX(from);
  const strip = [svg("rect", { x: toX(from), y, width, height, style: `fill:${colourOf(share)}` })];
  const middle = { class: "label", x: toX(from) + width / 2, y: y + 13, "text-anchor": "middle" };
  if (width > 22) strip.push(svg("text", middle, label));
  return strip;
}
