// Several laws asked about one budget, as fit/planning/compare.py: the best architecture of each, against its own best
// dense model, and what they agree on. All counts with embedding and head.

import { TRAINING, endsOf, enough, memoryOf, shapeOf, structure, tokensOf } from "./counts.js";
import { leastFlops } from "./cost.js";
import { extrapolation, lawAt, lossOfRun } from "./law.js";
import { format } from "./numbers.js";
import { notBounded } from "./plan.js";
import { solve } from "./solve.js";
import { infeasibleWhy, say } from "./words.js";

// The splits of an expert that lie within the law's data; [1] where a split makes no difference to the law.
function splitsOf(data, law) {
  const read = ["top_k", "granularity"].filter((name) => law.columns.includes(name));
  if (!read.length) return [1];
  return data.compare.splits.filter((k) => read.every((name) => k <= (law.ranges[name]?.[1] ?? k)));
}

// The shapes that the law can tell apart. given: what is asked of models; used: expert width of a token, or null.
function choices(data, law, given, used) {
  const base = { final_norm: false, split: 1, shared: 0, n_dense: 0, kv_share: 1, used: 1 };
  const wanted = used && law.reads_used ? used : null;
  if (law.own) {
    const own = { ...base, ...law.own, final_norm: law.final_norm, ...given };
    const narrow = (wanted ?? [own.used]).map((u) => Math.max(own.shared + 1, Math.round(u * own.split)));
    return [...new Set(narrow)].map((n) => shapeOf({ ...own, used: n / own.split }));
  }
  const most = law.columns.includes("shared_share") ? (law.ranges.shared_share?.[1] ?? 1) : 0;
  const out = [];
  for (const u of wanted ?? [1])
    for (const k of "split" in given ? [given.split] : splitsOf(data, law))
      if ("shared" in given) out.push(shapeOf({ ...base, split: k, used: u, ...given }));
      else
        for (let s = 0; s < u * k; s++)
          if (s <= most * u * k && Number.isInteger(u * k))
            out.push(shapeOf({ ...base, split: k, shared: s, used: u, ...given }));
  return out;
}

// [optimum, shape] of the law's least loss over the shapes and experts; [null, first shape] where nothing is feasible.
function bestAmong(law, shapes, limits, experts) {
  let best = [null, shapes[0]];
  for (const shape of shapes)
    for (const e of experts.filter((e) => enough(shape, e))) {
      const found = solve(lawAt(law, shape, e), e, shape, limits);
      if (found.feasible && !(best[0] && best[0].loss <= found.loss)) best = [found, shape];
    }
  return best;
}

function columnsOf(law, shape, { n_active, n_total, d_model, n_experts }) {
  const less = law.counts_embedding ? 0 : endsOf(shape) * d_model;
  return { n_active: n_active - less, n_total: n_total - less, ...structure(shape, n_experts) };
}

const lawNamed = (data, name) => data.laws.find((law) => law.name === name);

function denseOf(data, law, given, limits, loss) {
  if (!law.knows_dense) return null;
  const dense = law.dense ? lawNamed(data, law.dense) : law;
  const [found, shape] = bestAmong(dense, choices(data, dense, given, null), limits, [1]);
  if (!found) return null;
  const { n_active, n_tokens } = found;
  const row = { n_experts: 1, n_active, n_tokens, loss: found.loss, law: dense.name };
  row.loss_saved_share = 1 - loss / found.loss;
  if (limits.flops == null) return row;
  const needed = leastFlops(dense, 1, shape, limits, loss, limits.flops, 1e12 * limits.flops);
  return { ...row, flops_ratio: needed && needed / limits.flops };
}

// A known model under the same budget by the law, against models built like the law's best; null where none is trained.
function beside(law, like, best, shape, limits) {
  const n_tokens = tokensOf(limits, like.counts.n_active);
  if (limits.flops == null || n_tokens < 1) return null;
  const columns = { ...like.columns(law.counts_embedding, Boolean(law.own)), n_tokens };
  const only = law.only_experts;
  if (only != null && Math.abs(columns.n_experts - only) > 1e-5 * only) return null;
  const loss = lossOfRun(law, columns);
  const within = { ...limits, memory_bytes: null, max_tokens: null, epochs: null, chips: null };
  const least = leastFlops(law, best.n_experts, shape, within, loss, 1e-6 * limits.flops, limits.flops);
  const outside = extrapolation(law, { ...columns, training_flops: TRAINING * like.counts.n_active * n_tokens });
  return { n_tokens, loss, extrapolation: outside, flops_share: least && least / limits.flops };
}

// {flag: value} of what is asked of the models but the law has no column for.
function notRead(law, { kv_share = 1, n_dense = 0 }, used) {
  const many = used && used.join() !== "1" && law.of_mixtures && !law.reads_used;
  return {
    ...(kv_share !== 1 && { kv_share }),
    ...(n_dense && { dense_blocks: n_dense }),
    ...(many && { used: used.map((u) => format("{u:g}", { u })).join() }),
  };
}

// The law's best architecture and its best dense one; {law, why} where nothing is feasible.
function answerOf(data, law, given, limits, experts, used, like) {
  experts = !experts || law.fixes_experts || !law.knows_experts ? law.experts : experts;
  const [best, shape] = bestAmong(law, choices(data, law, given, used), limits, experts);
  if (!best) return { law: law.name, why: infeasibleWhy(shape, limits, [Math.min(...experts)]) };
  const { n_experts: e, n_active, n_total, n_tokens, loss, d_model, size_bound } = best;
  const columns = columnsOf(law, shape, best);
  const splits = splitsOf(data, law);
  const [largest, least] = [Math.max(...experts), Math.min(...experts)];
  const row = {
    ...{ n_experts: e, n_active, n_total, n_tokens, loss, d_model, law: law.name, form: law.form },
    ...{ source: law.source, note: law.note, mixtures: law.of_mixtures, sparsity: columns.sparsity },
    ...{ split: shape.split, shared: shape.shared, used: shape.used, size_bound },
    memory_bytes: memoryOf(shape, limits, d_model, e),
    chose_experts: law.knows_experts && !law.fixes_experts,
    at_edge: law.knows_experts && experts.length > 1 && (e === largest || (e === least && e > 1)),
    not_bounded: e === largest && notBounded(law, shape, limits),
    finest: splits.length > 1 && shape.split === Math.max(...splits),
    extrapolation: extrapolation(law, { ...columns, n_tokens, training_flops: TRAINING * n_active * n_tokens }),
    not_read: notRead(law, given, used),
    dense: denseOf(data, law, given, limits, loss),
  };
  return like ? { ...row, like: beside(law, like, best, shape, limits) } : row;
}

// {laws, infeasible, agreement} of what each of the laws answers. given: fields of a shape that are asked for; experts
// and used: those allowed, null for each law's own; like: a model to set beside each law's best, or null.
export function compare(data, laws, given, limits, experts, used, like) {
  const rows = laws.map((law) => answerOf(data, law, given, limits, experts, used, like));
  const found = rows.filter((row) => "loss" in row);
  return { laws: found, infeasible: rows.filter((row) => !("loss" in row)), agreement: agreement(data, counted(data, found)) };
}

// The answers that count, as fit/planning/compare.py: those not too far beyond the compute of their law.
export function counted(data, rows) {
  const beyond = ({ extrapolation }) =>
    Math.max(1, ...extrapolation.filter((o) => o.column === "training_flops" && o.value > o.high).map((o) => o.factor));
  return rows.filter((row) => beyond(row) <= data.compare.furthest);
}

// What the laws together say, in sentences.
export function conclusion(data, rows) {
  const votes = counted(data, rows);
  const furthest = format("{n:,}", { n: data.compare.furthest });
  const out = rows.filter((row) => !votes.includes(row)).map(({ law }) => say("NOT_COUNTED_LAW", { law, furthest }));
  const mixtures = votes.filter((row) => row.mixtures && row.dense);
  if (mixtures.length) {
    const saved = mixtures.map(({ dense }) => dense.loss_saved_share);
    const for_mixtures = mixtures.filter(({ n_experts }) => n_experts > 1).length;
    const ends = { least: Math.min(...saved), most: Math.max(...saved) };
    out.push(say("LAWS_PREFER", { count: mixtures.length, for_mixtures, ...ends }));
  }
  const best = agreement(data, votes).filter(({ of, limit }) => of === "best" && limit === null);
  const spans = (agree) => best.filter((one) => one.agree === agree).map((one) => say("LAWS_SPAN", one)).join("; ");
  if (spans(false)) out.push(say("LAWS_DISAGREE", { what: spans(false) }));
  if (spans(true)) out.push(say("LAWS_AGREE", { agree: data.compare.agree, what: spans(true) }));
  return out;
}

// How far the laws' answers lie apart, for each of several columns.
export function agreement(data, rows) {
  const mixtures = rows.filter((row) => row.mixtures);
  const dense = rows.filter((row) => row.dense).map((row) => ({ ...row.dense, law: row.law }));
  const free = mixtures.filter((row) => row.chose_experts);
  const best = ["n_active", "n_total", "n_tokens"].map((name) => ["best", name, mixtures]);
  const questions = [...best, ["best", "n_experts", free], ["dense", "n_active", dense], ["dense", "n_tokens", dense]];
  return questions.flatMap(([of, column, models]) => {
    if (models.length < 2) return [];
    const sorted = [...models].sort((a, b) => a[column] - b[column]);
    const [low, high] = [sorted[0], sorted.at(-1)];
    const memory = column === "n_total" && models.every((row) => row.size_bound === "memory");
    const edge = column === "n_experts" && models.every((row) => row.at_edge);
    return {
      ...{ of, column, low: low[column], high: high[column], low_law: low.law, high_law: high.law },
      factor: high[column] / low[column],
      agree: high[column] <= data.compare.agree * low[column],
      limit: memory ? "memory" : edge ? "experts" : null,
    };
  });
}
