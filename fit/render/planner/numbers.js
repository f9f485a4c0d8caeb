// Numbers as the command line writes them, and as readers type them.

function withoutTrailingZeros(text) {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** Significant digits as Python's ".{digits}g" writes them. @type {(x: number, digits?: number) => string} */
export function general(x, digits = 6) {
  if (!Number.isFinite(x)) return String(x).replace("Infinity", "inf");
  const [mantissa, exponent] = x.toExponential(digits - 1).split("e");
  const power = Number(exponent);
  if (power >= -4 && power < digits) return withoutTrailingZeros(x.toFixed(digits - 1 - power));
  const sign = power < 0 ? "-" : "+";
  return `${withoutTrailingZeros(mantissa)}e${sign}${String(Math.abs(power)).padStart(2, "0")}`;
}

const THREE_DIGITS = { maximumSignificantDigits: 3, roundingMode: "halfEven", useGrouping: false };
const COMPACT = new Intl.NumberFormat("en-US", { notation: "compact", ...THREE_DIGITS });

/** A count: 9.71B, 1.68M, 257. @type {(x: number) => string} */
export function amount(x) {
  return COMPACT.format(x);
}

const MEMORY_UNITS = ["bytes", "KB", "MB", "GB", "TB", "PB"];

/** A memory: 24.3 GB, 73.1 KB. @type {(bytes: Bytes) => string} */
export function memoryText(bytes) {
  const rounded = Number(bytes.toPrecision(3));
  const power = rounded > 0 ? Math.floor(Math.log10(rounded) / 3 + 1e-9) : 0;
  const unit = Math.min(Math.max(power, 0), MEMORY_UNITS.length - 1);
  return `${Number((rounded / 1000 ** unit).toPrecision(3))} ${MEMORY_UNITS[unit]}`;
}

const SUPERSCRIPTS = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

/** FLOPs: 10²², 2.5×10¹². @type {(flops: Flops) => string} */
export function flopsText(flops) {
  const [mantissa, exponent] = flops.toExponential(2).split("e");
  const power = "10" + [...String(Number(exponent))].map((digit) => SUPERSCRIPTS[digit]).join("");
  return Number(mantissa) === 1 ? power : `${withoutTrailingZeros(mantissa)}×${power}`;
}

const YEAR = 365.25 * 24;
const SECOND = 1 / 3600;
// [from this many hours, hours of the unit, its name]
const TIMES = [[YEAR, YEAR, "years"], [48, 24, "days"], [1, 1, "h"], [1 / 60, 1 / 60, "min"], [SECOND, SECOND, "s"]];

/** A time: 14 s, 3.2 h, 21 days, 1.5 years. @type {(hours: Hours) => string} */
export function durationText(hours) {
  const unit = TIMES.find(([from]) => hours >= from);
  if (!unit) return "< 1 s";
  const [, size, name] = unit;
  return `${Number((hours / size).toPrecision(3))} ${name}`;
}

/** Dollars: $12.8K. @type {(x: number) => string} */
export function dollarsText(x) {
  return `$${amount(x)}`;
}

/** A share: 12.3%. @type {(share: number, digits: number) => string} */
export function percentText(share, digits) {
  return `${(100 * share).toFixed(digits)}%`;
}

const FORMATS = {
  "": String,
  ",": (x) => Math.round(x).toLocaleString("en-US"),
  g: (x) => general(x),
  amount,
  memory: memoryText,
  flops: flopsText,
  duration: durationText,
  dollars: dollarsText,
};

function formatValue(value, spec) {
  if (Array.isArray(value)) return value.map((item) => formatValue(item, spec)).join(" to ");
  if (spec in FORMATS) return FORMATS[spec](value);
  const [, digits, kind] = spec.match(/^\.(\d+)([fg%])$/);
  if (kind === "g") return general(value, Number(digits));
  if (kind === "%") return percentText(value, Number(digits));
  return value.toFixed(digits);
}

/** Fills in the {name} and {name:spec} of a template. @type {(template: string, values: object) => string} */
export function fillTemplate(template, values) {
  return template.replace(/\{\{|\}\}|\{(\w+)(?::([^}]*))?\}/g, (match, name, spec = "") => {
    const isEscapedBrace = name === undefined;
    return isEscapedBrace ? match[0] : formatValue(values[name], spec);
  });
}

const MULTIPLES = { "": 1, k: 1e3, m: 1e6, b: 1e9, t: 1e12 };

/** The number that a person typed: 1e22, 80, 1.5B, 16K; NaN where it is none. @type {(text: string) => number} */
export function parseNumber(text) {
  const plain = text.trim().replace(/[,_](?=\d{3})/g, "");
  const parts = /^([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([kmbt]?)$/i.exec(plain);
  if (parts == null) return NaN;
  const [, digits, suffix] = parts;
  return Number(digits) * MULTIPLES[suffix.toLowerCase()];
}

/** A number as a flag takes it, without loss of digits: 16384, 2e12. @type {(x: number) => string} */
export function flagText(x) {
  return x < 1e6 && x >= 1e-4 ? String(x) : x.toExponential().replace("e+", "e");
}
