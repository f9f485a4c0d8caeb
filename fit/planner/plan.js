// A plan: what `python -m fit plan --json` prints of it, by the same names, but for the model to build. Units as in
// solve.js.

import { addCosts, chipLimits, front, leastFlops, reach } from "./cost.js";
import { R_D, R_N, drawsOf, driftOf, effective, falls, fresh, lawAt, outsideOf, percentile, repeated } from "./law.js";
import { INFERENCE, TRAINING, limitsAt, memoryOf } from "./counts.js";
import { AS_GOOD, BAND, bestOf, largestIn, nearOptimal, optima, refuseWithoutOptimum, solve } from "./solve.js";
import { infeasibleWhy, refusal, say, sentences, warnings } from "./words.js";

export const DECIDED = 0.8; // share of the draws in which the best number of experts must be the best

// [law, limits, plan] of what was asked. If epochs are given, the law is that of repeated text; if a loss is to be
// reached, the limits have the least budget for it; if chips are given, they are a limit and the plan has costs.
export function planOf(data, law, { shape, limits, experts, loss, chips }) {
  if (limits.epochs != null && !law.closed) refusal("NO_REPEATS", { form: law.form });
  if (limits.epochs != null && !law.counts_embedding) refusal("REPEATS_OWN_COUNTS", { law: law.name });
  if (limits.epochs != null) law = repeated(law, limits.max_tokens, loss == null ? AS_GOOD : 0); // a target is met exactly
  const nothing = Math.log(shape.vocab_size); // the loss of a model that knows nothing
  if (loss >= nothing) refusal("TARGET_KNOWS_NOTHING", { loss, size: shape.vocab_size, nothing });
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
    const { closed } = lawAt(law, shape, n_experts);
    const [effective_n_active, effective_tokens] = effective(closed, law.unique, n_active, n_tokens);
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
  };
  if (law.bootstrap) out.bootstrap = bootstrap(law, shape, limits, experts, best.n_experts);
  out.verdict = verdictOf(data, out);
  if (limits.max_tokens != null && limits.flops != null)
    out.loss_of_token_cap =
      best.loss - bestOf(optima(fresh(law), shape, { ...limits, max_tokens: null }, experts)).loss;
  if (limits.flops != null && law.knows_dense && !law.dense) out.dense = againstDense(law, shape, limits, out.best);
  const { n_experts: e, extrapolation } = out.best;
  const ends = [Math.max(...experts), Math.min(...experts)];
  out.extrapolation = extrapolation;
  out.best_at_edge = law.knows_experts && experts.length > 1 && (e === ends[0] || (e === ends[1] && e > 1));
  out.best_undecided = null;
  if (out.bootstrap && experts.length > 1) {
    const won = out.bootstrap.optima.find((r) => r.n_experts === e)?.best_in_draws ?? 0;
    out.best_undecided = won < DECIDED * out.bootstrap.draws;
  }
  out.warnings = warnings(data, law, shape, out, experts, () => notBounded(law, shape, limitsAt(limits, best.n_experts)));
  return out;
}

// What the plan decides, as fit/planning/verdict.py.
function verdictOf(data, { optima, best, bootstrap }) {
  const { tie, apart, columns } = data.verdict;
  const behind = Object.fromEntries((bootstrap?.optima ?? []).map((row) => [row.n_experts, row.behind]));
  const tied = optima.filter(
    (row) => row === best || row.loss <= best.loss * (1 + tie) || behind[row.n_experts]?.[0] <= 0,
  );
  const isMixture = ({ n_experts }) => n_experts > 1;
  const mixtures = tied.filter(isMixture).length;
  const decided = mixtures === tied.length ? "mixture" : mixtures ? "undecided" : "dense";
  const others = optima.filter((row) => isMixture(row) !== isMixture(best)).map(({ loss }) => loss);
  const differ = Object.keys(columns).flatMap((name) => {
    const ends = [Math.min, Math.max].map((f) => f(...tied.map((row) => row[name])));
    return ends[1] >= apart * ends[0] ? [[name, ends]] : [];
  });
  return {
    choice: optima.length > 1 ? decided : null,
    tied: tied.map(({ n_experts }) => n_experts),
    cost: bootstrap ? bootstrap.regret : tie * best.loss,
    margin: others.length ? Math.min(...others) - best.loss : null,
    differ: Object.fromEntries(differ),
  };
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
  if ((law.closed && law.counts_embedding && !law.unique) || limits.memory_bytes != null || law.fixes_experts) return false;
  const [many, more] = [1e6, 1e7].map((e) => solve(lawAt(law, shape, e), e, shape, limits).loss);
  return more < many * (1 - BAND);
}

// The plan solved again for each draw: intervals at each number of experts, and how often each is the best.
// planned: the number of experts of the plan's best. As in fit/planning/planning.py.
function bootstrap(law, shape, limits, experts, planned) {
  const drawn = drawsOf(law).map((draw) => experts.map((e) => lawAt(law, shape, e, draw)));
  const rows = drawn.map((_, i) => i).filter((i) => drawn[i].every(falls));
  const usable = rows.map((i) => drawn[i]);
  if (!usable.length) return null;
  const largest = experts.map((e) => largestIn(e, shape, limits));
  const solved = usable.map((laws) => laws.map((one, i) => solve(one, experts[i], shape, limits, largest[i])));
  const best = solved.map((one) => bestOf(one)?.n_experts ?? experts[0]);
  const lossOf = ({ feasible, loss }) => (feasible ? loss : Infinity);
  const chosen = solved.map((one) => lossOf(one[experts.indexOf(planned)]));
  const [low, high] = law.bootstrap.percentiles;
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
            behind: [low, high].map((p) => percentile(solved.map((one, k) => one[i].loss - chosen[k]), p)),
            n_active: interval(i, "n_active"),
            n_tokens: interval(i, "n_tokens"),
            loss: interval(i, "loss"),
          },
        ]
      : [],
  );
  const regret = percentile(solved.map((one, k) => chosen[k] - Math.min(...one.map(lossOf))), high);
  const { form, percentiles, by } = law.bootstrap;
  return { form, percentiles, by, draws: usable.length, draws_without_optimum: drawn.length - usable.length, regret, optima };
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
