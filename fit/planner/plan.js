// A plan: the dictionary that `python -m fit plan --json` prints, key by key. Units as in solve.js.

import { addCosts, chipLimits, front, leastFlops, reach } from "./cost.js";
import { R_D, R_N, drawsOf, driftOf, effective, falls, fresh, lawAt, outsideOf, percentile, repeated } from "./law.js";
import { INFERENCE, TRAINING, holding, isMixture, limitsAt, memoryOf, model, smallestOf, tokensOf, widths } from "./counts.js";
import { AS_GOOD, BAND, bestOf, largestIn, nearOptimal, optima, refuseWithoutOptimum, solve } from "./solve.js";
import { infeasibleWhy, refusal, say, sentences, warnings } from "./words.js";

const ROUNDED = 0.15; // ratios within this share of each other are taken for one that was rounded to whole widths
const TRIED = 300; // depths around the planned one, and widths at each, as fit/planning/building.py
export const DECIDED = 0.8; // share of the draws in which the best number of experts must be the best

// [law, limits, plan] of what was asked. If epochs are given, the law is that of repeated text; if a loss is to be
// reached, the limits have the least budget for it; if chips are given, they are a limit and the plan has costs.
export function planOf(data, law, { shape, limits, experts, loss, chips }) {
  if (limits.epochs != null && !law.closed) refusal("NO_REPEATS", { form: law.form });
  if (limits.epochs != null) law = repeated(law, limits.max_tokens, loss == null ? AS_GOOD : 0); // a target is met exactly
  limits = { ...limits, chips: chipLimits(data, chips) };
  let target = null;
  if (loss != null) [limits, target] = reach(data, law, shape, limits, experts, loss, chips);
  const plan = planFor(data, law, shape, limits, experts);
  if (target) plan.target = { ...target, front: front(data, law, shape, limits, experts, chips) };
  if (limits.epochs != null) plan.repeats = repeatsOf(data, law, shape, limits, experts, plan);
  if (chips) addCosts(data, plan, law, chips, shape, limits, experts);
  return [law, limits, plan];
}

// What reading text again is worth, and how much better than reading it once; adds a warning to the plan.
function repeatsOf(data, law, shape, limits, experts, plan) {
  const once = bestOf(optima(law, shape, { ...limits, epochs: 1 }, experts));
  const rows = plan.optima.map(({ n_experts, n_active, n_tokens }) => {
    const [effective_n_active, effective_tokens] = effective(lawAt(law, shape, n_experts).closed, law.unique, n_active, n_tokens);
    return { n_experts, epochs: n_tokens / law.unique, effective_n_active, effective_tokens };
  });
  if (plan.best.size_bound === "plateau") plan.warnings.push(say("PLATEAU", { near: law.slack }));
  plan.warnings.push(sentences.REPEATS_DENSE);
  return {
    source: data.repeats,
    r_d: R_D,
    r_n: R_N,
    unique_tokens: law.unique,
    optima: rows,
    best: rows.find(({ n_experts }) => n_experts === plan.best.n_experts),
    loss_saved: once.loss - plan.best.loss,
  };
}

// A plan; throws PlanError with the command line's sentence where there is none.
// data: what the page holds; experts: those compared, ascending.
export function planFor(data, law, shape, limits, experts) {
  const solved = optima(law, shape, limits, experts);
  const best = bestOf(solved);
  const rows = solved.filter((o) => o.feasible).map((o) => row(law, o, shape, limits, best.loss));
  const out = {
    law: law.name,
    form: law.form,
    ...shape.given,
    constraints: Object.fromEntries(Object.entries(limits).filter(([name, v]) => v != null && name !== "chips")),
    optima: rows,
    infeasible: solved
      .filter((o) => !o.feasible)
      .map(({ n_experts }) => ({ n_experts, why: infeasibleWhy(shape, limits, [n_experts]) })),
    best: rows.find((r) => r.n_experts === best.n_experts),
    buildable: buildable(data, law, shape, limits, solved),
  };
  if (law.bootstrap) out.bootstrap = bootstrap(law, shape, limits, experts);
  if (limits.max_tokens != null && limits.flops != null)
    out.loss_of_token_cap =
      best.loss - bestOf(optima(fresh(law), shape, { ...limits, max_tokens: null }, experts)).loss;
  if (limits.flops != null && !law.dense) {
    out.dense = againstDense(law, shape, limits, out.best);
    out.rule_of_thumb = ruleOfThumb(fresh(law), shape, limitsAt(limits, best.n_experts).flops, experts);
  }
  [out.base_config, out.overrides] = baseConfig(data, law, shape);
  const { n_experts: e, extrapolation } = out.best;
  const ends = [Math.max(...experts), Math.min(...experts)];
  out.extrapolation = extrapolation;
  out.best_at_edge = law.knows_experts && experts.length > 1 && (e === ends[0] || (e === ends[1] && e > 1));
  out.best_undecided = null;
  if (out.bootstrap) {
    const won = out.bootstrap.optima.find((r) => r.n_experts === e)?.best_in_draws ?? 0;
    out.best_undecided = won < DECIDED * out.bootstrap.draws;
  }
  out.warnings = warnings(data, law, shape, out, experts, () => notBounded(law, shape, limitsAt(limits, best.n_experts)));
  return out;
}

// One line of the plan's table.
function row(law, { n_experts, n_active, n_total, n_tokens, loss, d_model, size_bound }, shape, limits, least) {
  return marked(law, shape, {
    n_experts,
    n_active,
    n_total,
    n_tokens,
    loss,
    d_model,
    size_bound,
    memory_bytes: memoryOf(shape, limits, d_model, n_experts),
    training_flops: TRAINING * n_active * n_tokens,
    inference_flops_per_token: INFERENCE * n_active,
    near_optimal_n_active: nearOptimal(law, { n_experts, n_active, loss }, shape, limits, least),
  });
}

const marked = (law, shape, row) => ({
  ...row,
  extrapolation: outsideOf(law, shape, row.n_active, row.n_tokens, row.n_experts, row.n_total, row.d_model),
});

// Whether, without a limit on memory, the loss still falls at numbers of experts far beyond any that can be built.
export function notBounded(law, shape, limits) {
  if ((law.closed && !law.unique) || limits.memory_bytes != null || law.fixes_experts) return false;
  const [many, more] = [1e6, 1e7].map((e) => solve(lawAt(law, shape, e), e, shape, limits).loss);
  return more < many * (1 - BAND);
}

// The plan solved again for each draw: intervals at each number of experts, and how often each is the best.
function bootstrap(law, shape, limits, experts) {
  const drawn = drawsOf(law).map((draw) => experts.map((e) => lawAt(law, shape, e, draw)));
  const rows = drawn.map((_, i) => i).filter((i) => drawn[i].every(falls));
  const usable = rows.map((i) => drawn[i]);
  if (!usable.length) return null;
  const largest = experts.map((e) => largestIn(e, shape, limits));
  const solved = usable.map((laws) => laws.map((one, i) => solve(one, experts[i], shape, limits, largest[i])));
  const best = solved.map((one) => bestOf(one)?.n_experts ?? experts[0]);
  const drifted = ({ loss, n_active, n_tokens }, draw) => loss * driftOf(law, draw, TRAINING * n_active * n_tokens);
  const interval = (i, name) =>
    law.bootstrap.percentiles.map((p) =>
      percentile(
        solved.map((s, row) => (name === "loss" ? drifted(s[i], rows[row]) : s[i][name])),
        p,
      ),
    );
  const optima = experts.flatMap((e, i) =>
    solved[0][i].feasible
      ? [
          {
            n_experts: e,
            best_in_draws: best.filter((other) => other === e).length,
            n_active: interval(i, "n_active"),
            n_tokens: interval(i, "n_tokens"),
            loss: interval(i, "loss"),
          },
        ]
      : [],
  );
  const { form, percentiles, by } = law.bootstrap;
  return { form, percentiles, by, draws: usable.length, draws_without_optimum: drawn.length - usable.length, optima };
}

// The config file and overrides of the runs behind the law; a law that names none has the paper's for its shape.
function baseConfig(data, law, shape) {
  if (law.models.base_config) return [law.models.base_config, law.models.overrides ?? {}];
  return [law.configs || !isPapers(data, shape) ? null : data.paper.config, {}];
}

const isPapers = (data, shape) =>
  !isMixture(shape) && Object.entries(data.paper.shape).every(([name, value]) => shape[name] === value);

function learningRate(data, law, base, size, e) {
  const { learning_rate: own } = law.models;
  const rate = ({ constant, n_active, n_experts }) =>
    Math.exp(constant + n_active * Math.log(size) + n_experts * Math.log(e));
  if (own) return [rate(own), law.published ? sentences.RATE_EQ_10 : sentences.RATE_OF_RUNS];
  if (base !== data.paper.config) return [null, sentences.RATE_UNKNOWN];
  if (size < data.paper.smallest_tuned) return [null, sentences.RATE_TOO_SMALL];
  return [rate(data.paper.learning_rate), sentences.RATE_EQ_10];
}

const apart = (a, b) => Math.max(a / b, b / a);

// The models of whole blocks and heads around an optimum that meet the limits, each with the optimum's size.
function whole(data, law, shape, limits, { n_experts, n_active: planned, d_model }) {
  limits = limitsAt(limits, n_experts);
  const blocks = d_model / shape.width_per_block;
  const [sequence, at] = [law.models.seq_len ?? data.sequence, lawAt(law, shape, n_experts)];
  const [found, least] = [[], Math.round(smallestOf(shape) / shape.width_per_block)];
  for (let n = Math.max(least, Math.ceil(blocks * (1 + ROUNDED))); n >= least; n -= Math.ceil(blocks / TRIED)) {
    if (found.length && n < blocks / (1 + ROUNDED) - 1) break;
    const tried = widths(shape, n, ROUNDED);
    for (let i = 0; i < tried.length; i += Math.ceil(tried.length / TRIED)) {
      const one = model(shape, n, tried[i], n_experts, sequence);
      const { exact_parameters, n_active, n_total } = one.row;
      const memory_bytes =
        limits.bytes_per_parameter * exact_parameters +
        limits.bytes_per_kv_element * one.cache_elements * limits.kv_tokens;
      const n_tokens = Math.floor(tokensOf(limits, n_active));
      if ((limits.memory_bytes != null && memory_bytes > limits.memory_bytes) || n_tokens < 1) continue;
      if (limits.chips) {
        const chips = holding(shape, limits.chips, tried[i], exact_parameters);
        if (!chips || chips > limits.chips.count) continue;
      }
      const loss = at.at(n_active, n_tokens, n_total, tried[i]);
      found.push({ ...one, n_tokens, loss, memory_bytes, sequence, planned });
    }
  }
  return found;
}

// The model of whole blocks and heads to build, with as many experts as the best optimum has; where none fits, with any
// other number, null if there is none. As fit/planning/building.py.
function buildable(data, law, shape, limits, solved) {
  const optimum = bestOf(solved);
  let found = whole(data, law, shape, limits, optimum);
  if (!found.length)
    found = solved.filter((o) => o.feasible).flatMap((o) => whole(data, law, shape, limits, o));
  const allowed = found.filter(({ off }) => off <= 1 + ROUNDED);
  if (allowed.length) found = allowed;
  const most = (1 + AS_GOOD) * Math.max(optimum.loss, Math.min(...found.map(({ loss }) => loss)));
  const further = (a, b) =>
    a.off - b.off || apart(a.planned, a.row.n_active) - apart(b.planned, b.row.n_active);
  const chosen = found
    .filter(({ loss }) => loss <= most)
    .reduce((best, one) => (best && further(best, one) <= 0 ? best : one), null);
  if (!chosen) return null;
  const { row, n_tokens, loss, memory_bytes, exact_forward_flops_per_token, sequence } = chosen;
  const best = {
    ...row,
    n_tokens,
    loss,
    loss_of_building: loss - optimum.loss,
    memory_bytes,
    training_flops: TRAINING * row.n_active * n_tokens,
    sequence,
    exact_forward_flops_per_token,
    exact_training_flops: 3 * exact_forward_flops_per_token * n_tokens,
  };
  const [base] = baseConfig(data, law, shape);
  [best.learning_rate, best.learning_rate_from] = learningRate(data, law, base, best.n_active, best.n_experts);
  best.batch_tokens =
    base === data.paper.config ? data.paper.batch_ramp.filter(([from]) => from < best.n_tokens) : null;
  return marked(law, shape, best);
}

// What the best plan saves against the best dense model under the same limits; null where no dense model fits.
function againstDense(law, shape, limits, best) {
  limits = limitsAt(limits, best.n_experts);
  const at = lawAt(law, shape, 1);
  refuseWithoutOptimum([at], [1]);
  const dense = solve(at, 1, shape, limits);
  if (!dense.feasible) return null;
  const search = () => leastFlops(law, 1, shape, limits, best.loss, limits.flops, 1e12 * limits.flops);
  const needed = best.n_experts > 1 ? search() : limits.flops;
  const { n_active, n_tokens, loss } = dense;
  return {
    ...marked(law, shape, { n_experts: 1, n_active, n_tokens, loss }),
    loss_saved: loss - best.loss,
    flops_for_the_same_loss: needed,
    flops_saved: needed == null ? null : 1 - limits.flops / needed,
    inference_flops_ratio: best.n_active / n_active,
  };
}

// Whether a mixture of E <= 8 with the compute-optimal dense model's total parameters, on E times its tokens, is better.
function ruleOfThumb(law, shape, flops, experts) {
  const none = { flops: null, memory_bytes: null, max_tokens: null, inference_tokens: 0, kv_tokens: 0 };
  const usual = { ...none, bytes_per_parameter: 2, bytes_per_kv_element: 2 };
  const dense = solve(lawAt(law, shape, 1), 1, shape, { ...usual, flops });
  const rows = [];
  for (const e of experts.filter((e) => 1 < e && e <= 8)) {
    const same = { ...usual, memory_bytes: dense.n_total, bytes_per_parameter: 1, max_tokens: e * dense.n_tokens };
    const { feasible, n_active, n_tokens, loss } = solve(lawAt(law, shape, e), e, shape, same);
    if (!feasible) continue;
    const holds = loss < dense.loss;
    const flops_ratio = (TRAINING * n_active * n_tokens) / flops;
    rows.push(marked(law, shape, { n_experts: e, n_active, n_tokens, loss, dense_loss: dense.loss, holds, flops_ratio }));
  }
  return rows;
}
