// Pictures in SVG: lines and dots over two axes. The browser shows a dot's text to the pointer.

import { element, svg } from "./elements.js";
import { PlanError } from "./messages.js";

const HEIGHT = 300;
const MARGIN = { left: 64, right: 14, top: 10, bottom: 42 };

/** The colour at a share of the page's five; 0 is dense, 1 the most experts. @type {(share: number) => string} */
export function colourOf(share) {
  const position = Math.min(Math.max(share, 0), 1) * 4;
  const stop = Math.min(Math.floor(position), 3);
  const percent = ((position - stop) * 100).toFixed(1);
  return `color-mix(in oklab, var(--e${stop}), var(--e${stop + 1}) ${percent}%)`;
}

// Ticks of a log axis: powers of ten, with 2 and 5 times them where these are few.
function logTicks({ low, high }, most) {
  const decades = Math.log10(high / low);
  const mantissas = 3 * decades <= most ? [1, 2, 5] : [1];
  const step = Math.ceil(decades / most);
  const ticks = [];
  for (let power = Math.floor(Math.log10(low) / step) * step; 10 ** power <= high; power += step) {
    ticks.push(...mantissas.map((mantissa) => mantissa * 10 ** power));
  }
  return ticks.filter((tick) => tick >= low && tick <= high);
}

function linearTicks({ low, high }, most) {
  const unit = 10 ** Math.floor(Math.log10((high - low) / most));
  const step = unit * [1, 2, 5, 10].find((multiple) => multiple * unit * most >= high - low);
  const ticks = [];
  for (let i = Math.ceil(low / step); i * step <= high; i++) ticks.push(i * step);
  return ticks;
}

// The function from a value between low and high to its place in the drawing.
function linearScale({ low, high }, from, to) {
  return (value) => from + ((value - low) / (high - low)) * (to - from);
}

function logScale({ low, high }, from, to) {
  const scale = linearScale({ low: Math.log(low), high: Math.log(high) }, from, to);
  return (value) => scale(Math.log(value));
}

/** Makes the place of a picture. @type {(caption: string) => Picture} */
export function makePicture(caption) {
  const drawing = svg("svg", { class: "drawing", role: "img", "aria-label": caption });
  const note = element("span", { class: "note" });
  const title = element("figcaption", {}, element("b", {}, caption), " ", note);
  return { figure: element("figure", { class: "picture" }, title, drawing), drawing, note };
}

/** Draws a picture in its place. @type {(picture: Picture, spec: PictureSpec) => void} */
export function drawPicture(picture, spec) {
  for (const { low, high } of [spec.x, spec.y]) {
    if (!Number.isFinite(high - low) || low >= high) throw new PlanError("cannot be drawn for these limits");
  }
  const { drawing, note } = picture;
  note.textContent = spec.note;
  const width = Math.max(260, Math.round(picture.figure.clientWidth || 480));
  const box = { x: MARGIN.left, y: MARGIN.top, width: width - MARGIN.left - MARGIN.right };
  box.height = HEIGHT - MARGIN.top - MARGIN.bottom;
  const toX = logScale(spec.x, box.x, box.x + box.width);
  const toY = linearScale(spec.y, box.y + box.height, box.y);
  drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  const id = `clip-${drawing.getAttribute("aria-label").replaceAll(" ", "-")}`;
  const inside = svg("g", { "clip-path": `url(#${id})` });
  drawing.replaceChildren(svg("clipPath", { id }, svg("rect", box)), axesOf(spec.x, spec.y, toX, toY, box), inside);
  for (const line of spec.lines) inside.append(...pathsOf(line, toX, toY));
  if (spec.rule != null) inside.append(svg("path", { class: "rule", d: `M${toX(spec.rule)},${box.y}v${box.height}` }));
  for (const dot of spec.dots) inside.append(circleOf(dot, toX, toY));
}

function circleOf({ x, y, share, r, kind, text }, toX, toY) {
  const colour = colourOf(share);
  const styles = { dot: `fill:${colour}`, hollow: `stroke:${colour};fill:var(--back)`, ring: "" };
  const circle = { cx: toX(x), cy: toY(y), r, class: kind, style: styles[kind] };
  return svg("circle", circle, svg("title", {}, text));
}

function axesOf(x, y, toX, toY, box) {
  const axes = svg("g", { class: "axes" });
  const foot = box.y + box.height;
  for (const value of logTicks(x, Math.max(3, Math.floor(box.width / 70)))) {
    const text = svg("text", { x: toX(value), y: foot + 16, "text-anchor": "middle" }, x.format(value));
    axes.append(svg("path", { d: `M${toX(value)},${box.y}V${foot}` }), text);
  }
  for (const value of linearTicks(y, 6)) {
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
function pathsOf({ share, points }, toX, toY) {
  const place = ({ x, y }) => `${toX(x).toFixed(1)},${toY(y).toFixed(1)}`;
  const pieces = [];
  points.slice(0, -1).forEach((point, i) => {
    const classes = ["line"];
    if (point.isOutside) classes.push("dashed");
    if (point.isTooLarge) classes.push("faint");
    const look = classes.join(" ");
    if (pieces.at(-1)?.look !== look) pieces.push({ look, path: `M${place(point)}` });
    pieces.at(-1).path += `L${place(points[i + 1])}`;
  });
  return pieces.map(({ look, path }) => svg("path", { class: look, d: path, style: `stroke:${colourOf(share)}` }));
}
