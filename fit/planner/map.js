// The map of the best number of experts over FLOPs and memory. ask = {law, shape, limits, experts}.

import { draw } from "./chart.js";
import { drawsOf, falls, lawAt } from "./law.js";
import { amount, fixed, flopsText, memoryText } from "./numbers.js";
import { inBytes, memories, spread } from "./pictures.js";
import { DECIDED } from "./plan.js";
import { bestOf, largestIn, solve } from "./solve.js";
import { PlanError } from "./words.js";

const CELLS = [30, 18]; // FLOPs and memories
const MAP_DRAWS = 20; // of the bootstrap: the map shows where they disagree

// The law at each of the experts by some of the draws, spread evenly; only draws that have an optimum at all of them.
function someDraws(law, shape, experts) {
  const draws = drawsOf(law);
  const some = draws.filter(
    (_, i) => Math.floor((i * MAP_DRAWS) / draws.length) !== Math.floor(((i - 1) * MAP_DRAWS) / draws.length),
  );
  const drawn = some.map((draw) => experts.map((e) => lawAt(law, shape, e, draw)));
  return drawn.filter((laws) => laws.every(falls));
}

// The best E over FLOPs and memory; hatched where the draws leave it undecided.
export function map(picture, { law, shape, limits, experts }, looks, choose) {
  if (limits.flops == null) return "needs a budget of FLOPs";
  const [low, high] = law.ranges.training_flops ?? [limits.flops, limits.flops];
  const start = Math.min(limits.flops / 30, high);
  const budgets = spread(Math.max(start, low), Math.max(limits.flops * 30, 100 * high), CELLS[0] + 1);
  let sizes;
  try {
    const ends = [budgets[0], budgets.at(-1)].map((flops) =>
      memories(law, shape, { ...limits, flops, memory_bytes: null }, experts, 2),
    );
    const at = limits.memory_bytes ?? ends[1][1];
    sizes = spread(Math.min(ends[0][0], at / 2), Math.max(ends[1][1] / 2, 2 * at), CELLS[1] + 1);
  } catch (error) {
    if (error instanceof PlanError) return "nothing is feasible at some of these budgets";
    throw error;
  }
  const laws = experts.map((e) => lawAt(law, shape, e));
  const drawn = laws[0].searched ? [] : someDraws(law, shape, experts); // a search for each would take too long
  const [cells, stops] = [[], []];
  const bests = []; // of each stop, null where nothing fits
  for (let j = 0; j < CELLS[1]; j++) {
    const bytes = Math.sqrt(sizes[j] * sizes[j + 1]);
    const largest = experts.map((e) => largestIn(e, shape, { ...limits, memory_bytes: bytes }));
    for (let i = 0; i < CELLS[0]; i++) {
      const flops = Math.sqrt(budgets[i] * budgets[i + 1]);
      const within = { ...limits, flops, memory_bytes: bytes };
      const bestBy = (laws) => bestOf(laws.map((at, k) => solve(at, experts[k], shape, within, largest[k])));
      const best = bestBy(laws);
      const agree = best && drawn.filter((laws) => bestBy(laws)?.n_experts === best.n_experts).length;
      const open = best && agree < DECIDED * drawn.length;
      const text = `${flopsText(flops, 2)} FLOPs, ${memoryText(bytes)}\n`;
      stops.push({
        x: flops,
        y: bytes,
        flops,
        bytes,
        text:
          text +
          (best
            ? `best E = ${best.n_experts}, loss ${fixed(best.loss, 4)}\n${amount(best.n_active)} active, ${amount(best.n_tokens)} tokens` +
              (best.size_bound ? `\nbound by ${best.size_bound}` : "") +
              (open ? `\nundecided: the best in ${agree} of ${drawn.length} draws` : "")
            : "nothing fits"),
      });
      bests.push(best && best.n_experts);
      const at = { x: [budgets[i], budgets[i + 1]], y: [sizes[j], sizes[j + 1]] };
      if (best) cells.push({ ...at, ...looks[best.n_experts], open });
    }
  }
  const asked = [limits.flops, limits.memory_bytes ?? Infinity];
  const away = ({ x, y }) =>
    Math.abs(Math.log(x / asked[0])) + (Number.isFinite(asked[1]) ? Math.abs(Math.log(y / asked[1])) : -y / 1e30);
  draw(picture, {
    x: { log: true, low: budgets[0], high: budgets.at(-1), label: "training FLOPs", format: (v) => flopsText(v) },
    y: { ...inBytes, low: sizes[0], high: sizes.at(-1), label: "memory" },
    cells,
    labels: middles(bests).map(([e, at]) => ({ x: stops[at].x, y: stops[at].y, text: `${e}` })),
    rules: law.ranges.training_flops ? [{ x: high }] : [],
    dots: limits.memory_bytes == null ? [] : [{ x: limits.flops, y: limits.memory_bytes, ring: true, r: 7 }],
    stops,
    row: CELLS[0],
    first: stops.reduce((near, stop, i) => (away(stop) < away(stops[near]) ? i : near), 0),
    choose: (stop) => choose({ flops: stop.flops, bytes: stop.bytes }),
  });
  return (
    "click to take a cell" +
    (law.ranges.training_flops ? "; the law was fitted left of the line" : "") +
    (cells.some(({ open }) => open) ? "; hatched where the draws leave it undecided" : "")
  );
}

// [[e, cell]]: the cell of each number of experts that lies deepest in its region, where there is room for a label.
function middles(bests) {
  const place = (k) => [k % CELLS[0], Math.floor(k / CELLS[0])];
  const away = (k, other) => Math.hypot(...place(k).map((v, axis) => v - place(other)[axis]));
  const deepest = {};
  bests.forEach((e, k) => {
    const [i, j] = place(k);
    let depth = Math.min(i + 0.6, CELLS[0] - i - 0.4, j + 0.6, CELLS[1] - j - 0.4);
    bests.forEach((other, at) => other !== e && (depth = Math.min(depth, away(k, at))));
    if (e && depth > 1 && !(deepest[e]?.depth >= depth)) deepest[e] = { depth, k };
  });
  return Object.entries(deepest).map(([e, { k }]) => [e, k]);
}
