// The map of the best number of experts over FLOPs and memory. ask = {law, shape, limits, experts}.

import { draw } from "./chart.js";
import { memoryOf, smallestOf, tokensOf } from "./counts.js";
import { drawsOf, falls, lawAt } from "./law.js";
import { amount, fixed, flopsText, memoryText } from "./numbers.js";
import { inBytes, memories, spread } from "./pictures.js";
import { DECIDED } from "./plan.js";
import { bestOf, largestIn, solve } from "./solve.js";
import { PlanError, safely } from "./words.js";

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

// The best number of experts at each budget and memory, by one law: [flops][memory] of {n_experts, ...}. The best size
// without a limit of memory is looked for once; where it does not fit, the largest that does is taken.
function bestsOf(laws, experts, shape, limits, budgets, sizes) {
  const held = sizes.map((bytes) => experts.map((e) => largestIn(e, shape, { ...limits, memory_bytes: bytes })));
  const least = experts.map((e) => memoryOf(shape, limits, smallestOf(shape), e));
  return budgets.map((flops) => {
    const within = { ...limits, flops, memory_bytes: null };
    const free = laws.map((at, k) => solve(at, experts[k], shape, within));
    return sizes.map((bytes, j) =>
      bestOf(
        free.map((o, k) => {
          if (!o.feasible || bytes < least[k]) return { feasible: false };
          if (o.n_active <= held[j][k]) return o;
          const n_tokens = tokensOf(within, held[j][k]);
          const loss = laws[k].loss(held[j][k], n_tokens);
          return { ...o, n_active: held[j][k], n_tokens, loss, size_bound: "memory" };
        }),
      ),
    );
  });
}

// The best E over FLOPs and memory; hatched where draws leave it undecided, or other laws differ by more than a factor.
export function map(picture, { data, law, shape, limits, experts }, looks, choose) {
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
  const middle = (ends) => ends.slice(1).map((end, i) => Math.sqrt(end * ends[i]));
  const [flopsOf, bytesOf] = [middle(budgets), middle(sizes)];
  const solved = (laws) => bestsOf(laws, experts, shape, limits, flopsOf, bytesOf);
  const best = solved(experts.map((e) => lawAt(law, shape, e)));
  const drawn = law.unique ? [] : someDraws(law, shape, experts).map(solved); // of repeated text they would take too long
  const others = experts.length < 2 ? [] : data.laws.filter(({ name }) => name !== law.name && data.compare.laws.includes(name));
  const free = others.filter((other) => other.knows_experts && !other.fixes_experts);
  const beside = free.flatMap((other) => {
    const bests = safely(() => solved(experts.map((e) => lawAt(other, shape, e))));
    return bests ? [bests] : [];
  });
  const [cells, stops, bests] = [[], [], []]; // bests: of each stop, null where nothing fits
  bytesOf.forEach((bytes, j) =>
    flopsOf.forEach((flops, i) => {
      const here = best[i][j];
      const agree = drawn.filter((one) => one[i][j]?.n_experts === here?.n_experts).length;
      const theirs = beside.map((one) => one[i][j]?.n_experts).filter(Boolean);
      const undecided = here && agree < DECIDED * drawn.length;
      const apart = here && theirs.some((e) => Math.max(e / here.n_experts, here.n_experts / e) > data.compare.agree);
      const lines = !here
        ? ["nothing fits"]
        : [
            `best E = ${here.n_experts}, loss ${fixed(here.loss, 4)}`,
            `${amount(here.n_active)} active, ${amount(here.n_tokens)} tokens`,
            here.size_bound && `bound by ${here.size_bound}`,
            undecided && `undecided: the best in ${agree} of ${drawn.length} draws`,
            theirs.length && `E by other laws: ${theirs.join(", ")}`,
          ].filter(Boolean);
      const text = [`${flopsText(flops, 2)} FLOPs, ${memoryText(bytes)}`, ...lines].join("\n");
      stops.push({ x: flops, y: bytes, flops, bytes, text });
      bests.push(here && here.n_experts);
      const at = { x: [budgets[i], budgets[i + 1]], y: [sizes[j], sizes[j + 1]] };
      if (here) cells.push({ ...at, ...looks[here.n_experts], open: undecided || apart });
    }),
  );
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
    (cells.some(({ open }) => open) ? "; hatched where draws leave it undecided, or other laws' E differs by more than a factor of 2" : "")
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
