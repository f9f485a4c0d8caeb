// A table of runs that was dropped on the page: CSV, JSON lines or JSON with n_active, n_tokens, n_experts and loss.

export class TableError extends Error {}

// {file, count, name, held_out, n_active, n_tokens, n_experts, loss}: columns; TableError names the row and column.
export function readTable(text, file, law) {
  if (text.startsWith("PAR1")) throw new TableError(`${file}: is Parquet; drop a table of CSV or JSON lines`);
  const start = text.trimStart()[0];
  const rows = start === "{" || start === "[" ? fromJson(text, file) : fromCsv(text, file);
  const mixtures = law.experts.some((e) => e > 1); // a law of dense models alone needs no n_experts
  const needed = [...law.columns, "loss"].filter((name) => name !== "n_experts" || mixtures);
  const read = [...new Set(["n_active", "n_tokens", "n_experts", "loss", ...law.columns])];
  const columns = { ...Object.fromEntries(read.map((name) => [name, []])), name: [], held_out: [] };
  for (const { row, values } of rows) {
    for (const name of read) {
      if (!needed.includes(name) && values[name] === undefined) values[name] = 1;
      if (values[name] === undefined)
        throw new TableError(`${file}: has no column ${name}; it has ${Object.keys(values).slice(0, 12).join(", ")}`);
      const text = String(values[name]).trim();
      const value = text === "" ? NaN : Number(text);
      if (!(value > 0 && Number.isFinite(value)))
        throw new TableError(`${file}, row ${row}, column ${name}: found “${text}”, expected a positive number`);
      columns[name].push(value);
    }
    columns.name.push(values.run || `row ${row}`);
    columns.held_out.push(false);
  }
  if (!columns.loss.length) throw new TableError(`${file}: has no rows`);
  return { ...columns, file, count: columns.loss.length };
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
