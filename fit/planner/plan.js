// A plan: what `fit plan --json` prints, by the same names, but for the model of whole blocks.

import { addCosts, chipLimits } from "./cost.js";
import { INFERENCE_FLOPS, TRAINING_FLOPS, memoryOf } from "./counts.js";
import { drawsOf, driftOf, extrapolationOf, falls, lawAt, percentile } from "./law.js";
import { infeasibleWhy, warningsOf } from "./messages.js";
import { bestOf, largestSize, leastFlops, optima, refuseWithoutOptimum, solve } from "./solve.js";

// {plan, limits} of the reader's options; the chips' memory is among the limits. Throws PlanError where there is none.
export function planOf(data, law, options) {
  const { shape, experts, chips } = options;
  const limits = { ...options.limits, chips: chipLimits(data, chips) };
  const solved = optima(law, shape, limits, experts);
  const rows = solved.filter((one) => one.feasible).map((one) => planRow(law, one, shape, limits));
  const best = rows.find(({ n_experts }) => n_experts === bestOf(solved).n_experts);
  const infeasible = solved
    .filter((one) => !one.feasible)
    .map(({ n_experts }) => ({ n_experts, why: infeasibleWhy(shape, limits, [n_experts]) }));
  const { vocab_size, width_per_block } = shape;
  const plan = { law: law.name, form: law.form, vocab_size, width_per_block, constraints: printedLimits(limits) };
  Object.assign(plan, { optima: rows, infeasible, best, extrapolation: best.extrapolation });
  if (law.bootstrap) plan.bootstrap = bootstrapOf(law, shape, limits, experts, best.n_experts);
  plan.verdict = verdictOf(data, plan);
  if (limits.flops != null && law.knows_dense && !law.dense) plan.dense = againstDense(law, shape, limits, best);
  const isLargest = best.n_experts === Math.max(...experts);
  const isSmallest = best.n_experts === Math.min(...experts) && best.n_experts > 1;
  plan.best_at_edge = law.knows_experts && experts.length > 1 && (isLargest || isSmallest);
  plan.best_undecided = isUndecided(data, plan, experts);
  const wantsMore = plan.best_at_edge && isLargest && isNotBounded(data, law, shape, limits);
  plan.warnings = warningsOf(data, law, shape, plan, experts, wantsMore);
  if (chips) addCosts(data, plan, law, chips, shape, limits, experts);
  return { plan, limits };
}

function printedLimits({ chips, budget, ...limits }) {
  return Object.fromEntries(Object.entries(limits).filter(([, value]) => value != null));
}

// One line of the plan's table.
function planRow(law, optimum, shape, limits) {
  const { feasible: _, ...row } = optimum;
  const { n_experts, n_active, n_tokens, d_model } = row;
  return {
    ...row,
    memory_bytes: memoryOf(shape, limits, d_model, n_experts),
    training_flops: TRAINING_FLOPS * n_active * n_tokens,
    inference_flops_per_token: INFERENCE_FLOPS * n_active,
    extrapolation: extrapolationOf(law, shape, optimum),
  };
}

// Whether a mixture or a dense model is better, and between which models the law cannot tell.
function verdictOf(data, { optima, best, bootstrap }) {
  const { tie, apart, columns } = data.verdict;
  const behind = Object.fromEntries((bootstrap?.optima ?? []).map((row) => [row.n_experts, row.behind]));
  const isMixture = ({ n_experts }) => n_experts > 1;
  const tied = optima.filter(
    (row) => row === best || row.loss <= best.loss * (1 + tie) || behind[row.n_experts]?.[0] <= 0,
  );
  let choice = null;
  if (optima.length > 1) {
    choice = tied.some(isMixture) ? "mixture" : "dense";
    if (choice === "mixture" && !tied.every(isMixture)) choice = "undecided";
  }
  const otherKind = optima.filter((row) => isMixture(row) !== isMixture(best)).map(({ loss }) => loss);
  const differ = {};
  for (const name of Object.keys(columns)) {
    const values = tied.map((row) => row[name]);
    const ends = [Math.min(...values), Math.max(...values)];
    if (ends[1] >= apart * ends[0]) differ[name] = ends;
  }
  return {
    choice,
    tied: tied.map(({ n_experts }) => n_experts),
    cost: bootstrap ? bootstrap.regret : tie * best.loss,
    margin: otherKind.length ? Math.min(...otherKind) - best.loss : null,
    differ,
  };
}

// Whether too few draws have the plan's best number of experts as theirs; null without draws or others to compare.
function isUndecided(data, { bootstrap, best }, experts) {
  if (!bootstrap || experts.length < 2) return null;
  const row = bootstrap.optima.find(({ n_experts }) => n_experts === best.n_experts);
  return row.best_in_draws < data.doubt.decided * bootstrap.draws;
}

// Whether, without a limit on memory, the loss still falls at numbers of experts far beyond any that can be built.
function isNotBounded(data, law, shape, limits) {
  const hasClosedForm = law.closed && law.counts_embedding;
  if (hasClosedForm || limits.memory_bytes != null || law.fixes_experts) return false;
  const [many, more] = [1e6, 1e7].map((e) => solve(lawAt(law, shape, e), e, shape, limits));
  return more.loss < many.loss * (1 - data.doubt.band);
}

// The plan solved again for each draw: intervals at each number of experts, and how often each is the best.
// planned: the plan's best number of experts.
function bootstrapOf(law, shape, limits, experts, planned) {
  const { form, percentiles, by } = law.bootstrap;
  const draws = drawsOf(law).map((draw, i) => ({ i, laws: experts.map((e) => lawAt(law, shape, e, draw)) }));
  const usable = draws.filter(({ laws }) => laws.every(falls));
  if (!usable.length) return null;
  const largest = experts.map((e) => largestSize(e, shape, limits));
  const solved = usable.map(({ laws }) => laws.map((at, k) => solve(at, experts[k], shape, limits, largest[k])));
  const lossOf = (one) => (one.feasible ? one.loss : Infinity);
  const lossOfPlanned = solved.map((ofDraw) => lossOf(ofDraw[experts.indexOf(planned)]));
  const winners = solved.map((ofDraw) => bestOf(ofDraw)?.n_experts ?? experts[0]);
  const between = (values) => percentiles.map((percent) => percentile(values, percent));
  function intervals(e, k) {
    const ofExperts = solved.map((ofDraw) => ofDraw[k]);
    const drifted = ofExperts.map(
      ({ loss, n_active, n_tokens }, row) => loss * driftOf(law, usable[row].i, TRAINING_FLOPS * n_active * n_tokens),
    );
    return {
      n_experts: e,
      best_in_draws: winners.filter((winner) => winner === e).length,
      behind: between(ofExperts.map(({ loss }, row) => loss - lossOfPlanned[row])),
      loss: between(drifted),
    };
  }
  const regrets = solved.map((ofDraw, row) => lossOfPlanned[row] - Math.min(...ofDraw.map(lossOf)));
  return {
    ...{ form, percentiles, by, draws: usable.length, draws_without_optimum: draws.length - usable.length },
    regret: percentile(regrets, percentiles[1]),
    optima: experts.flatMap((e, k) => (solved[0][k].feasible ? [intervals(e, k)] : [])),
  };
}

// What the best plan saves against the best dense model under the same limits; null where no dense model fits.
function againstDense(law, shape, limits, best) {
  const at = lawAt(law, shape, 1);
  refuseWithoutOptimum([at], [1]);
  const dense = solve(at, 1, shape, limits);
  if (!dense.feasible) return null;
  const { n_active, n_tokens, loss } = dense;
  let needed = limits.flops;
  if (best.n_experts > 1) needed = leastFlops(law, 1, shape, limits, best.loss, limits.flops, 1e12 * limits.flops);
  const row = { n_experts: 1, n_active, n_tokens, loss };
  return {
    ...row,
    extrapolation: extrapolationOf(law, shape, row),
    loss_saved: loss - best.loss,
    flops_for_the_same_loss: needed,
    flops_saved: needed == null ? null : 1 - limits.flops / needed,
    inference_flops_ratio: best.n_active / n_active,
  };
}
