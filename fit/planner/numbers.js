// Numbers as Python's format() writes them, letter by letter: the page says what the command line says.

// JavaScript rounds a half up, Python to the even digit; it is a half if the digits of `long` after `text` are 5000...
function rounded(text, long) {
  const next = long.slice(text.length - (text.includes(".") ? 0 : -1));
  if (!/^50*$/.test(next) || (text.at(-1) - 0) % 2 === 0) return text;
  return text.slice(0, -1) + (text.at(-1) - 1); // the odd digit came from rounding up, and is not 0
}

export function fixed(x, digits) {
  if (Math.abs(x) >= 1e21) return BigInt(x) + (digits ? "." + "0".repeat(digits) : "");
  return rounded(x.toFixed(digits), x.toFixed(Math.min(100, digits + 40)));
}

function exponential(x, digits) {
  const [short, power] = x.toExponential(digits).split("e");
  const [long, its] = x.toExponential(Math.min(100, digits + 40)).split("e");
  const mantissa = power === its ? rounded(short, long) : short; // 9.995 became 1.00: no half to correct
  const size = power.slice(1).padStart(2, "0");
  return `${mantissa}e${power[0]}${size}`;
}

const stripped = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

function general(x, digits = 6) {
  if (!Number.isFinite(x)) return x > 0 ? "inf" : x < 0 ? "-inf" : "nan";
  if (x === 0) return "0";
  const [mantissa, power] = exponential(x, Math.max(digits, 1) - 1).split("e");
  if (power < -4 || power >= digits) return `${stripped(mantissa)}e${power}`;
  return stripped(fixed(x, digits - 1 - power));
}

const grouped = (x) => fixed(x, 0).replace(/\B(?=(\d{3})+$)/g, ",");

const SPECS = {
  "": String,
  ",": grouped,
  g: (x) => general(x),
  amount: (x) => amount(x),
  memory: (x) => memoryText(x),
  flops: (x) => flopsText(x),
};

function formatted(value, spec) {
  if (Array.isArray(value)) return value.map((one) => formatted(one, spec)).join(" to ");
  if (spec in SPECS) return SPECS[spec](value);
  const [, digits, kind] = spec.match(/^\.(\d+)([efg%])$/);
  if (kind === "%") return fixed(100 * value, +digits) + "%";
  return { e: exponential, f: fixed, g: general }[kind](value, +digits);
}

// The template with its {name} and {name:spec} filled in, as units.say does.
export function format(template, values) {
  return template.replace(/\{\{|\}\}|\{(\w+)(?::([^}]*))?\}/g, (found, name, spec) =>
    name ? formatted(values[name], spec ?? "") : found[0],
  );
}

const AMOUNTS = [
  [1e12, "T"],
  [1e9, "B"],
  [1e6, "M"],
  [1e3, "K"],
  [1, ""],
];
const MEMORIES = [
  [1e15, "PB"],
  [1e12, "TB"],
  [1e9, "GB"],
  [1e6, "MB"],
  [1e3, "KB"],
  [1, "bytes"],
];

const threeDigits = (x) => stripped(fixed(+exponential(x, 2), 6)) || "0";

function scaled(value, units) {
  const x = +exponential(value, 2);
  const [size, name] = units.find(([size]) => Math.abs(x) >= size) ?? units.at(-1);
  return [threeDigits(x / size), name];
}

// A count: 9.71B, 1.68M, 257.
export const amount = (x) => scaled(x, AMOUNTS).join("");

// Bytes: 24.3 GB, 73.1 KB.
export const memoryText = (x) => scaled(x, MEMORIES).join(" ");

// FLOPs in plain text: 10²², 2.5×10¹².
export function flopsText(x, digits = 3) {
  const [mantissa, power] = exponential(x, digits - 1).split("e");
  const raised = "10" + [...String(+power)].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("");
  return +mantissa === 1 ? raised : `${stripped(mantissa)}×${raised}`;
}

export const digits = general;
// A time: 14 s, 3.2 h, 21 days, 1.5 years.
export function duration(hours) {
  const year = 365.25 * 24;
  const [, size, name] = [
    [year, year, "years"],
    [48, 24, "days"],
    [1, 1, "h"],
    [1 / 60, 1 / 60, "min"],
  ].find(([from]) => hours >= from) ?? [0, 1 / 3600, "s"];
  return hours * 3600 >= 1 ? `${threeDigits(hours / size)} ${name}` : "< 1 s";
}

export const percent = (x) => fixed(100 * x, 2) + "%";

// What a person typed as a number: 1e22, 80, 1.5B, 16K; NaN where it is none.
export function parsed(text) {
  const parts = /^([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([kmbt]?)$/i.exec(
    text.trim().replace(/[,_](?=\d{3})/g, ""),
  );
  return parts ? parts[1] * { "": 1, k: 1e3, m: 1e6, b: 1e9, t: 1e12 }[parts[2].toLowerCase()] : NaN;
}

// A number as a flag or a field takes it, no digit lost: 16384, 2e12.
export const typed = (x) => (x >= 1e6 || x < 1e-4 ? x.toExponential().replace("e+", "e") : String(x));
