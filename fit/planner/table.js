// A table of runs that was dropped on the page: CSV, JSON lines or JSON with n_active, n_tokens, n_experts and loss.

export class TableError extends Error {}

// Columns under other names, as people call them; compared in small letters, other signs than letters and digits as _.
const OTHER = {
  n_active: "active_params active_parameters params n_params num_params parameters n model_size non_embedding_params",
  n_total: "total_params total_parameters",
  n_tokens: "tokens train_tokens training_tokens num_tokens d n_train_tokens",
  n_experts: "experts num_experts e",
  loss: "val_loss eval_loss eval_loss_mean validation_loss valid_loss test_loss final_loss train_loss",
  flops: "training_flops train_flops total_flops compute c",
};
const MAY_BE_ZERO = ["sparsity", "shared_share"];
const MOST = 20000; // rows that a page fits and draws

const plain = (name) => name.trim().toLowerCase().replace(/[^a-z0-9]+/g, "_");

// {ours: theirs}: the column of `names` that each of our columns most likely is.
export function guessed(names) {
  const found = {};
  for (const [ours, others] of Object.entries(OTHER)) {
    const wanted = [ours, ...others.split(" ")];
    const rank = (name) => wanted.indexOf(plain(name));
    const [best] = names.filter((name) => rank(name) >= 0).sort((a, b) => rank(a) - rank(b));
    if (best !== undefined) found[ours] = best;
  }
  return found;
}

// {rows: [{row, values}], names} of a table's text; TableError says why it is none.
export function parseTable(text, file) {
  if (text.startsWith("PAR1")) throw new TableError(`${file}: is Parquet; drop a table of CSV or JSON lines`);
  let lines = 0;
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) lines++;
  if (lines > 2 * MOST) throw new TableError(`${file}: has ${lines} lines, a page takes ${MOST} rows; use fit law`);
  const start = text.trimStart()[0];
  const rows = start === "{" || start === "[" ? fromJson(text, file) : fromCsv(text, file);
  if (!rows.length) throw new TableError(`${file}: has no rows`);
  if (rows.length > MOST) throw new TableError(`${file}: has ${rows.length} rows, a page takes ${MOST}; use fit law`);
  return { rows, names: Object.keys(rows[0].values ?? {}) };
}

// {file, count, name, held_out, n_active, n_tokens, n_experts, loss, ...}: columns that a law reads; where FLOPs stand in
// for tokens, or for parameters, these follow by 6 N D. chosen: {ours: theirs}. TableError names the row and column.
export function readTable({ rows, names }, file, law, chosen) {
  const mixtures = law.experts.some((e) => e > 1); // a law of dense models alone needs no n_experts
  const needed = [...law.columns, "loss"].filter((name) => name !== "n_experts" || mixtures);
  const read = [...new Set(["n_active", "n_tokens", "n_experts", "loss", ...law.columns])];
  const columns = { ...Object.fromEntries(read.map((name) => [name, []])), name: [], held_out: [] };
  const from = (name) => chosen[name] ?? name;
  const number = (values, row, name) => {
    if (values[from(name)] === undefined)
      throw new TableError(`${file}: has no column ${name}; it has ${names.slice(0, 12).join(", ")}`);
    const text = String(values[from(name)]).trim();
    const value = text === "" ? NaN : Number(text);
    if (Number.isFinite(value) && (value > 0 || (value === 0 && MAY_BE_ZERO.includes(name)))) return value;
    throw new TableError(`${file}, row ${row}, column ${from(name)}: found “${text}”, expected a positive number`);
  };
  const by = { n_tokens: "n_active", n_active: "n_tokens" };
  for (const { row, values } of rows) {
    const has = (name) => values[from(name)] !== undefined;
    for (const name of read)
      if (!needed.includes(name) && !has(name)) columns[name].push(1);
      else if (!has(name) && by[name] && has("flops") && has(by[name]))
        columns[name].push(number(values, row, "flops") / 6 / number(values, row, by[name]));
      else columns[name].push(number(values, row, name));
    columns.name.push(values.run || `row ${row}`);
    columns.held_out.push(false);
  }
  return { ...columns, file, count: rows.length };
}

// At most so many of the runs, spread evenly.
export function thinned(runs, most = 2000) {
  if (!runs || runs.loss.length <= most) return runs;
  const kept = Array.from({ length: most }, (_, i) => Math.round((i * (runs.loss.length - 1)) / (most - 1)));
  const some = (v) => (Array.isArray(v) ? kept.map((i) => v[i]) : v);
  return Object.fromEntries(Object.entries(runs).map(([name, v]) => [name, some(v)]));
}

function fromJson(text, file) {
  const whole = parsedOr(text, null);
  if (whole?.form && whole.coefficients)
    throw new TableError(`${file}: is a law, not runs; python -m fit page --law=${file} makes this page with it`);
  if (whole && !Array.isArray(whole) && text.trim().includes("\n"))
    throw new TableError(`${file}: is one JSON object, expected a table: CSV, JSON lines or a list of objects`);
  try {
    const isArray = text.trimStart().startsWith("[");
    const lines = isArray
      ? JSON.parse(text)
      : text
          .split("\n")
          .filter((line) => line.trim())
          .map((line) => JSON.parse(line));
    return lines.map((values, i) => ({ row: i + 1, values }));
  } catch (error) {
    throw new TableError(`${file}: is not JSON: ${error.message}`);
  }
}

function parsedOr(text, otherwise) {
  try {
    return JSON.parse(text);
  } catch {
    return otherwise;
  }
}

function fromCsv(text, file) {
  const [head, ...rows] = records(text);
  if (!head) throw new TableError(`${file}: is empty`);
  return rows.map(({ row, cells }) => {
    if (cells.length !== head.cells.length)
      throw new TableError(`${file}, row ${row}: has ${cells.length} cells, the head has ${head.cells.length}`);
    return { row, values: Object.fromEntries(head.cells.map((name, i) => [name.trim(), cells[i]])) };
  });
}

// Records of CSV with quoted cells; row is the line on which each begins, from 1.
function records(text) {
  const out = [];
  let [cells, cell, row, line] = [[], "", 1, 1];
  const end = () => {
    cells.push(cell);
    if (cells.length > 1 || cell.trim()) out.push({ row, cells });
    [cells, cell] = [[], ""];
  };
  for (const [, quoted, plain, mark] of text
    .replace(/^\ufeff/, "")
    .matchAll(/"((?:[^"]|"")*)"|([^",\r\n]+)|(,|\r?\n|\r)/g)) {
    line += (quoted ?? mark ?? "").split("\n").length - 1;
    if (quoted !== undefined) cell += quoted.replaceAll('""', '"');
    else if (plain !== undefined) cell += plain;
    else if (mark === ",") {
      cells.push(cell);
      cell = "";
    } else {
      end();
      row = line;
    }
  }
  end();
  return out;
}
