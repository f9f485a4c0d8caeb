// The sentences of a plan: the command line's own templates (fit/words/sentences.py) filled in.

import { INFERENCE, TRAINING, active, enough, leastOf, limitsAt, memoryOf, smallestOf, structure, topK } from "./counts.js";
import { amount, format } from "./numbers.js";

export let sentences = {};
export const setSentences = (templates) => (sentences = templates);

export const say = (name, values = {}) => format(sentences[name], values);

// What cannot be planned, in the command line's sentence.
export class PlanError extends Error {}
export function refusal(name, values) {
  throw new PlanError(say(name, values));
}

// What f() returns; if it throws a PlanError, null, after a call of `refused` with the error's sentence.
export function safely(f, refused = () => {}) {
  try {
    return f();
  } catch (error) {
    if (!(error instanceof PlanError)) throw error;
    refused(error.message);
    return null;
  }
}

// Why nothing is feasible at these numbers of experts: which limit cannot be met at the least of them, and by how much.
export function infeasibleWhy(shape, limits, experts) {
  const possible = experts.filter((e) => enough(shape, e));
  if (!possible.length) return say("TOO_FEW_EXPERTS", { e: Math.max(...experts), used: topK(shape) });
  const [d, e] = [smallestOf(shape), Math.min(...possible)];
  const smallest = say(shape.n_dense ? "SMALLEST_OF" : "SMALLEST", { d, e, blocks: 1 + shape.n_dense });
  if (limits.memory_bytes != null) {
    const need = memoryOf(shape, limits, d, e);
    const values = { smallest, need: need / 1e9, times: need / limits.memory_bytes, limit: limits.memory_bytes / 1e9 };
    if (need > limits.memory_bytes) return say("MEMORY_TOO_SMALL", values);
  }
  if (limits.chips) {
    const { count, kind, memory } = limits.chips;
    const need = leastOf(shape, limits, d, e);
    const values = { smallest, need: need / 1e9, times: need / (count * memory), limit: (count * memory) / 1e9 };
    if (need > count * memory) return say("CHIPS_TOO_FEW", { ...values, count, kind });
  }
  const size = active(shape, d, e);
  const { flops } = limitsAt(limits, e);
  const inference = INFERENCE * size * limits.inference_tokens;
  const need = inference + TRAINING * size;
  const share = inference ? say("INFERENCE_SHARE", { inference }) : "";
  const values = { smallest, need, share, times: need / flops, limit: flops };
  return say("FLOPS_TOO_FEW", { ...values, budget: "--flops" });
}

// What extrapolation() gives: "n_tokens 7 times above 1.31M, ..."; "" for nothing.
export function inWords(outside) {
  return outside
    .map(({ column, value, low, high, factor }) => {
      const above = value > high;
      const end = above ? high : low;
      const values = {
        column,
        factor: amount(factor),
        end: column === "training_flops" ? format("{end:.3g}", { end }) : amount(end),
      };
      return say(column === "unique_tokens" ? "TEXT_REPEATED" : above ? "ABOVE" : "BELOW", values);
    })
    .join(", ");
}

export const warningOf = (outside) => (outside.length ? say("OUTSIDE", { what: inWords(outside) }) : "");

// The marks of a plan in sentences; experts: those compared; unbounded: whether further experts always lower the loss.
export function warnings(data, law, shape, plan, experts, unbounded) {
  const { best } = plan;
  const e = best.n_experts;
  const out = [];
  if (best.extrapolation.length) {
    out.push(say("BEST_OUTSIDE", { outside: warningOf(best.extrapolation) }));
    if (law.warning) out.push(law.warning);
  }
  const ratio = best.n_tokens / best.n_active;
  if (ratio < 0.1 || ratio > 1e5) out.push(say("TOKENS_PER_PARAMETER", { what: "the model has", ratio }));
  if (plan.best_at_edge) out.push(say("AT_EDGE", { e, which: e === Math.max(...experts) ? "largest" : "smallest" }));
  if (plan.best_at_edge && e === Math.max(...experts) && unbounded()) out.push(sentences.NOT_BOUNDED);
  if (plan.best_undecided) {
    const { draws, optima } = plan.bootstrap;
    const won = optima.filter((row) => row.best_in_draws).sort((a, b) => b.best_in_draws - a.best_in_draws);
    const wins = won.map((row) => say("WIN", row)).join(", ");
    out.push(say("UNDECIDED", { draws, wins }));
  }
  out.push(...assumed(law, shape));
  if (!Object.keys(law.ranges).length) out.push(say("NO_RANGE"));
  const unknown = ["vocab_size", "width_per_block"].filter((name) => law.models[name] == null);
  const { given } = shape;
  if (unknown.length && !("split" in given) && Object.entries(data.paper_shape).every(([k, v]) => given[k] === v)) {
    const values = unknown.map((name) => format("{v:,}", { v: shape[name] })).join(" and ");
    out.push(say("SHAPE_UNKNOWN", { names: unknown.join(" and "), values }));
  }
  return out;
}

// What the law cannot know of these models: what is not built as its own models and not in its columns; and in what its
// own runs differ.
function assumed(law, shape) {
  const own = { used: 1, kv_share: 1, n_dense: 0, ...law.own };
  const names = ["used", "kv_share", "n_dense"].filter(
    (name) => shape[name] !== own[name] && !(name === "used" && law.reads_used),
  );
  const flag = (name) => (name === "n_dense" ? "dense_blocks" : name);
  const columns = law.columns.join(", ");
  const out = [];
  if (names.length) {
    const asked = names.map((n) => format(`--${flag(n)}={v:g}`, { v: shape[n] })).join(", ");
    const its = names.map((n) => format(`${flag(n)} {v:g}`, { v: own[n] })).join(", ");
    out.push(say("NOT_READ", { asked, form: law.form, own: its, columns }));
  }
  const whole = ["top_k", "granularity", "shared_share"].filter((name) => law.columns.includes(name));
  if (whole.length && !law.own && Math.max(...law.experts) > 1) {
    const values = whole.map((name) => format(`${name} {v:g}`, { v: structure(shape, 2)[name] })).join(", ");
    out.push(say("WHOLE_EXPERTS", { form: law.form, columns: whole.join(" and "), values }));
  }
  return [...out, ...law.notes];
}

// One sentence: what to train, and how sure its loss is.
export function answer({ best, bootstrap }) {
  const row = bootstrap?.optima.find((row) => row.n_experts === best.n_experts);
  return say("ANSWER", {
    ...best,
    model: say(best.n_experts > 1 ? "MIXTURE" : "DENSE", best),
    total: best.n_experts > 1 ? say("TOTAL", best) : "",
    interval: row ? say("INTERVAL", { ...ofDraws(bootstrap), loss: row.loss }) : "",
    built: "the second command below names the model of whole blocks to build",
  });
}

// What the plan decides, in sentences, as the command line prints them.
export function verdictInWords(data, { verdict, optima }) {
  const { choice, margin, cost } = verdict;
  const out = [];
  if (choice === "undecided") out.push(say("UNDECIDED_KIND", { cost }));
  else if (choice != null && margin != null)
    out.push(say("DECIDED_KIND", { choice, margin, other: choice === "mixture" ? "dense model" : "mixture" }));
  const tied = optima.filter(({ n_experts }) => verdict.tied.includes(n_experts));
  if (tied.length > 1) {
    const apart = Object.keys(verdict.differ).map((name) => data.verdict.columns[name]);
    const models = tied.map((row) => say("TIED_MODEL", row)).join(", ");
    out.push(say("TIED_MODELS", { models, apart: apart.join(" and ") || "nothing that is counted here" }));
  }
  return out;
}

const ofDraws = ({ percentiles: [first, last], draws }) => ({ draws, first, last });

// How often the draws agree on the best number of experts.
export function drawn(law, bootstrap) {
  const words = { ...ofDraws(bootstrap), drawn: law.bootstrap.drawn };
  if (bootstrap.optima.length === 1) return say("OF_DRAWS", words);
  const often = bootstrap.optima.reduce((most, row) => (row.best_in_draws > most.best_in_draws ? row : most));
  return say("BEST_IN_DRAWS", { ...often, ...words });
}

// What reading text again is worth, what the plan saves against dense and what a cap on tokens costs: a sentence each.
export function compared(plan) {
  const suffix = (row) => (row.extrapolation.length ? `; ${warningOf(row.extrapolation)}` : "");
  const out = [];
  const { dense, repeats } = plan;
  if (repeats) out.push(say("REPEATED", { ...repeats, ...repeats.best, n_active: plan.best.n_active }));
  if (dense && plan.best.n_experts > 1) {
    const flops = dense.flops_saved == null ? sentences.NEVER_DENSE : say("FLOPS_SAVED", dense);
    out.push(say("AGAINST_DENSE", { ...dense, flops }) + suffix(dense));
  }
  if (plan.loss_of_token_cap != null) out.push(say("TOKEN_CAP", plan));
  return out;
}

// On what chips a plan is costed.
export function costHead(chips) {
  const { mfu, dollars_per_hour } = chips;
  const one = (mfu) => format("{mfu:g}", { mfu });
  const each = typeof mfu === "object" ? Object.entries(mfu).map(([e, v]) => `${one(v)} (E = ${e})`).join(", ") : one(mfu);
  const dollars = dollars_per_hour == null ? "" : say("DOLLARS_EACH", chips);
  return say("COST_HEAD", { ...chips, mfu: each, dollars });
}

// What the table of a loss to reach says.
export function targetHead({ loss }, { inference_tokens }) {
  const inference = inference_tokens ? say("AND_INFERENCE", { inference_tokens }) : "";
  return say("TARGET_HEAD", { loss, inference });
}
