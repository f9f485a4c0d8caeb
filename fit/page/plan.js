// A plan: the dictionary that `python -m fit plan --json` prints, key by key. Units as in solve.js.

import { addCosts, front, leastFlops, reach } from "./cost.js";
import { R_D, R_N, drawsOf, effective, extrapolation, fresh } from "./law.js";
import { lossOf, percentile, reducedAt, repeated } from "./law.js";
import { INFERENCE, TRAINING, memoryOf, tokensOf } from "./counts.js";
import { bestOf, largestIn, nearOptimal, optima, refuseWithoutOptimum, solve } from "./solve.js";
import { infeasibleWhy, sentences, warnings } from "./words.js";

export const DECIDED = 0.8; // share of the draws in which the best number of experts must be the best

// [law, limits, plan] of what was asked. If epochs are given, the law is that of repeated text; if a loss is to be
// reached, the limits have the least budget for it; if chips are given, the plan has costs.
export function planOf(data, law, { shape, limits, experts, loss, chips }) {
  if (limits.epochs != null) law = repeated(law, limits.max_tokens);
  let target = null;
  if (loss != null) [limits, target] = reach(data, law, shape, limits, experts, loss, chips);
  const plan = planFor(data, law, shape, limits, experts);
  if (target) plan.target = { ...target, front: front(data, law, shape, limits, experts, chips) };
  if (limits.epochs != null) plan.repeats = repeatsOf(data, law, shape, limits, experts, plan);
  if (chips) addCosts(data, plan, chips, shape, limits);
  return [law, limits, plan];
}

// What reading text again is worth, and how much better than reading it once; adds a warning to the plan.
function repeatsOf(data, law, shape, limits, experts, plan) {
  const once = bestOf(optima(law, shape, { ...limits, epochs: 1 }, experts));
  const rows = plan.optima.map(({ n_experts, n_active, n_tokens }) => {
    const [effective_n_active, effective_tokens] = effective(reducedAt(law, n_experts), n_active, n_tokens);
    return { n_experts, epochs: n_tokens / law.unique, effective_n_active, effective_tokens };
  });
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
    ...shape,
    constraints: Object.fromEntries(Object.entries(limits).filter(([, v]) => v != null)),
    optima: rows,
    infeasible: solved
      .filter((o) => !o.feasible)
      .map(({ n_experts }) => ({ n_experts, why: infeasibleWhy(shape, limits, n_experts) })),
    best: rows.find((r) => r.n_experts === best.n_experts),
    buildable: buildable(data, law, shape, limits, solved),
  };
  if (law.bootstrap) out.bootstrap = bootstrap(law, shape, limits, experts);
  if (limits.max_tokens != null && limits.flops != null)
    out.loss_of_token_cap =
      best.loss - bestOf(optima(fresh(law), shape, { ...limits, max_tokens: null }, experts)).loss;
  if (limits.flops != null) {
    out.dense = againstDense(law, shape, limits, out.best);
    out.rule_of_thumb = ruleOfThumb(fresh(law), shape, limits.flops, experts);
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
  out.warnings = warnings(data, law, shape, out, experts);
  return out;
}

// One line of the plan's table.
function row(law, { n_experts, n_active, n_total, n_tokens, loss, d_model, size_bound }, shape, limits, least) {
  return marked(law, {
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

const marked = (law, row) => ({ ...row, extrapolation: extrapolation(law, row.n_active, row.n_tokens, row.n_experts) });

// The plan solved again for each draw: intervals at each number of experts, and how often each is the best.
function bootstrap(law, shape, limits, experts) {
  const drawn = drawsOf(law).map((draw) => experts.map((e) => reducedAt(law, e, draw)));
  const usable = law.unique ? drawn : drawn.filter((laws) => laws.every(([, mu, , nu]) => mu < 0 && nu < 0));
  if (!usable.length) return null;
  const largest = experts.map((e) => (limits.memory_bytes == null ? Infinity : largestIn(e, shape, limits)));
  const solved = usable.map((laws) => laws.map((one, i) => solve(one, experts[i], shape, limits, largest[i])));
  const best = solved.map((one) => bestOf(one)?.n_experts ?? experts[0]);
  const interval = (i, name) =>
    law.bootstrap.percentiles.map((p) =>
      percentile(
        solved.map((s) => s[i][name]),
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

const isPapers = (data, shape) => Object.entries(data.paper.shape).every(([name, value]) => shape[name] === value);

function learningRate(data, law, base, size, e) {
  const { learning_rate: own } = law.models;
  const rate = ({ constant, n_active, n_experts }) =>
    Math.exp(constant + n_active * Math.log(size) + n_experts * Math.log(e));
  if (own) return [rate(own), law.published ? sentences.RATE_EQ_10 : sentences.RATE_OF_RUNS];
  if (base !== data.paper.config) return [null, sentences.RATE_UNKNOWN];
  if (size < data.paper.smallest_tuned) return [null, sentences.RATE_TOO_SMALL];
  return [rate(data.paper.learning_rate), sentences.RATE_EQ_10];
}

// A decoder of whole blocks and its exact counts.
function model(shape, blocks, e, sequence) {
  const d = blocks * shape.width_per_block;
  const router = e > 1 ? blocks * d * e : 0;
  const n_total = 2 * d * shape.vocab_size + (4 + 9 * e) * blocks * d ** 2;
  return {
    n_experts: e,
    d_model: d,
    n_blocks: blocks,
    n_heads: blocks,
    d_ff: 3 * d,
    vocab_size: shape.vocab_size,
    n_active: 2 * d * shape.vocab_size + 13 * blocks * d ** 2,
    n_total,
    exact_parameters: n_total + (4 * blocks + shape.final_norm) * d + router,
    flops: 2 * (13 * blocks * d ** 2 + d * shape.vocab_size + router) + 4 * blocks * d * sequence,
  };
}

// The best model of whole blocks: each number of experts with the depths around its optimum. null if none fits.
function buildable(data, law, shape, limits, solved) {
  const sequence = law.models.seq_len ?? data.sequence;
  let best = null;
  for (const optimum of solved.filter((o) => o.feasible)) {
    const blocks = optimum.d_model / shape.width_per_block;
    const below = Math.floor(blocks + 1e-9);
    for (const n of new Set([Math.max(1, below - 1), Math.max(1, below), Math.ceil(blocks - 1e-9)])) {
      const { flops, ...built } = model(shape, n, optimum.n_experts, sequence);
      const bytes =
        limits.bytes_per_parameter * built.exact_parameters +
        limits.bytes_per_kv_element * 2 * limits.kv_tokens * n * built.d_model;
      const n_tokens = Math.floor(tokensOf(limits, built.n_active));
      if ((limits.memory_bytes != null && bytes > limits.memory_bytes) || n_tokens < 1) continue;
      const loss = lossOf(reducedAt(law, built.n_experts), built.n_active, n_tokens);
      if (best && best.loss <= loss) continue;
      best = {
        ...built,
        n_tokens,
        loss,
        memory_bytes: bytes,
        training_flops: TRAINING * built.n_active * n_tokens,
        sequence,
        exact_forward_flops_per_token: flops,
        exact_training_flops: 3 * flops * n_tokens,
      };
    }
  }
  if (!best) return null;
  const [base] = baseConfig(data, law, shape);
  [best.learning_rate, best.learning_rate_from] = learningRate(data, law, base, best.n_active, best.n_experts);
  best.batch_tokens =
    base === data.paper.config ? data.paper.batch_ramp.filter(([from]) => from < best.n_tokens) : null;
  return marked(law, best);
}

// What the best plan saves against the best dense model under the same limits; null where no dense model fits.
function againstDense(law, shape, limits, best) {
  const at = reducedAt(law, 1);
  refuseWithoutOptimum([at], [1]);
  const dense = solve(at, 1, shape, limits);
  if (!dense.feasible) return null;
  const needed = leastFlops(law, 1, shape, limits, best.loss, limits.flops, 1e12 * limits.flops);
  const { n_active, n_tokens, loss } = dense;
  return {
    ...marked(law, { n_experts: 1, n_active, n_tokens, loss }),
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
  const dense = solve(reducedAt(law, 1), 1, shape, { ...usual, flops });
  const rows = [];
  for (const e of experts.filter((e) => 1 < e && e <= 8)) {
    const same = { ...usual, memory_bytes: dense.n_total, bytes_per_parameter: 1, max_tokens: e * dense.n_tokens };
    const { feasible, n_active, n_tokens, loss } = solve(reducedAt(law, e), e, shape, same);
    if (!feasible) continue;
    const holds = loss < dense.loss;
    const flops_ratio = (TRAINING * n_active * n_tokens) / flops;
    rows.push(marked(law, { n_experts: e, n_active, n_tokens, loss, dense_loss: dense.loss, holds, flops_ratio }));
  }
  return rows;
}
