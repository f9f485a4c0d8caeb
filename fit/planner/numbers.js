// Numbers as the command line writes them, and as readers type them.

const withoutZeros = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

// So many significant digits, with an exponent where the number is very large or small, as Python's ".{digits}g".
export function general(x, digits = 6) {
  if (!Number.isFinite(x)) return String(x).replace("Infinity", "inf");
  const [mantissa, exponent] = x.toExponential(digits - 1).split("e");
  const power = Number(exponent);
  if (power >= -4 && power < digits) return withoutZeros(x.toFixed(digits - 1 - power));
  const sign = power < 0 ? "-" : "+";
  return `${withoutZeros(mantissa)}e${sign}${String(Math.abs(power)).padStart(2, "0")}`;
}

const COMPACT_FORMAT = { notation: "compact", maximumSignificantDigits: 3, useGrouping: false, roundingMode: "halfEven" };
const COMPACT = new Intl.NumberFormat("en-US", COMPACT_FORMAT);

// A count: 9.71B, 1.68M, 257.
export const amount = (x) => COMPACT.format(x);

const MEMORY_UNITS = ["bytes", "KB", "MB", "GB", "TB", "PB"];

// Bytes: 24.3 GB, 73.1 KB.
export function memoryText(bytes) {
  const rounded = Number(bytes.toPrecision(3));
  const power = rounded > 0 ? Math.floor(Math.log10(rounded) / 3 + 1e-9) : 0;
  const unit = Math.min(Math.max(power, 0), MEMORY_UNITS.length - 1);
  return `${threeDigits(rounded / 1000 ** unit)} ${MEMORY_UNITS[unit]}`;
}

const threeDigits = (x) => withoutZeros(Number(x.toPrecision(3)).toFixed(6));

const SUPERSCRIPTS = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

// FLOPs in plain text: 10²², 2.5×10¹².
export function flopsText(x) {
  const [mantissa, exponent] = x.toExponential(2).split("e");
  const power = "10" + [...String(Number(exponent))].map((character) => SUPERSCRIPTS[character]).join("");
  return Number(mantissa) === 1 ? power : `${withoutZeros(mantissa)}×${power}`;
}

const DURATIONS = { years: 365.25 * 24, days: 24, h: 1, min: 1 / 60, s: 1 / 3600 }; // in hours

// A time: 14 s, 3.2 h, 21 days, 1.5 years.
export function duration(hours) {
  const unit = Object.keys(DURATIONS).find((name) => hours >= DURATIONS[name]);
  return unit ? `${threeDigits(hours / DURATIONS[unit])} ${unit}` : "< 1 s";
}

const FORMATS = {
  "": String,
  ",": (x) => Math.round(x).toLocaleString("en-US"),
  g: (x) => general(x),
  amount,
  memory: memoryText,
  flops: flopsText,
};

function formatted(value, spec) {
  if (Array.isArray(value)) return value.map((one) => formatted(one, spec)).join(" to ");
  if (spec in FORMATS) return FORMATS[spec](value);
  const [, digits, kind] = spec.match(/^\.(\d+)([fg%])$/);
  if (kind === "g") return general(value, Number(digits));
  if (kind === "%") return `${(100 * value).toFixed(digits)}%`;
  return value.toFixed(digits);
}

// A template of the command line with its {name} and {name:spec} filled in.
export function format(template, values) {
  return template.replace(/\{\{|\}\}|\{(\w+)(?::([^}]*))?\}/g, (match, name, spec = "") =>
    name ? formatted(values[name], spec) : match[0],
  );
}

const MULTIPLES = { "": 1, k: 1e3, m: 1e6, b: 1e9, t: 1e12 };

// What a person typed as a number: 1e22, 80, 1.5B, 16K; NaN where it is none.
export function parsed(text) {
  const plain = text.trim().replace(/[,_](?=\d{3})/g, "");
  const parts = /^([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([kmbt]?)$/i.exec(plain);
  return parts ? parts[1] * MULTIPLES[parts[2].toLowerCase()] : NaN;
}

// A number as a flag or a field takes it, without loss of digits: 16384, 2e12.
export const typed = (x) => (x >= 1e6 || x < 1e-4 ? x.toExponential().replace("e+", "e") : String(x));
