// A plan: what `fit plan --json` prints, by the same names, without the model of whole blocks.

import { costOf } from "./cost.js";
import { INFERENCE_FLOPS, servingBytes, trainingFlops } from "./counts.js";
import { drawsOf, driftFactor, falls, flopsOfLaw, lawAtExperts, outsideRangesOf, percentile } from "./law.js";
import { infeasibleReason, warningsOf } from "./messages.js";
import { bestOf, feasibleOf, largestSize, optimaOf, solve } from "./solve.js";
import { speedOf } from "./speeds.js";

/** The plan, and its limits. Throws PlanError where nothing is feasible.
 *  @type {(data: Data, law: Law, options: Options) => {plan: Plan, limits: Limits}} */
export function planOf(data, law, options) {
  const { shape, experts, chips, limits } = options;
  const solved = optimaOf(law, shape, limits, experts);
  const optima = feasibleOf(solved).map((optimum) => planRow(law, optimum, shape, limits));
  const best = optima.find(({ n_experts }) => n_experts === bestOf(solved).n_experts);
  const infeasible = solved.filter(({ feasible }) => !feasible).map(({ n_experts }) => {
    return { n_experts, why: infeasibleReason(shape, limits, [n_experts]) };
  });
  const { vocab_size, width_per_block } = shape;
  const constraints = printedLimits(limits);
  const plan = { law: law.name, form: law.form, vocab_size, width_per_block, constraints, optima, infeasible, best };
  plan.extrapolation = best.extrapolation;
  if (law.bootstrap) plan.bootstrap = bootstrapOf(law, shape, limits, experts, best.n_experts);
  plan.verdict = verdictOf(data, plan);
  plan.best_at_edge = isAtEdge(law, best.n_experts, experts);
  plan.best_undecided = isUndecided(data, plan, experts);
  const isLargest = best.n_experts === Math.max(...experts);
  const wantsMore = plan.best_at_edge && isLargest && isNotBounded(data, law, shape, limits);
  plan.warnings = warningsOf(data, law, shape, plan, experts, wantsMore);
  if (chips) {
    const { serve_batch: _, mfu, ...trainingChips } = chips;
    plan.chips = limits.speeds ? trainingChips : { ...trainingChips, mfu };
    for (const row of optima) row.cost = costOf(data, chips, row, shape, limits);
  }
  return { plan, limits };
}

/** Whether a best number of experts is at an end of those compared; dense is no end.
 *  @type {(law: Law, best: Experts, experts: Experts[]) => boolean} */
export function isAtEdge(law, best, experts) {
  if (!law.knows_experts || experts.length < 2) return false;
  return best === Math.max(...experts) || (best === Math.min(...experts) && best > 1);
}

function printedLimits({ budget, serving, speeds, ...limits }) {
  const { tokens_per_second: serve_tokens_per_second, batch: serve_batch } = serving ?? {};
  const printed = { ...limits, serve_tokens_per_second, serve_batch };
  return Object.fromEntries(Object.entries(printed).filter(([, value]) => value != null));
}

function planRow(law, optimum, shape, limits) {
  const { feasible: _, n_blocks: __, tokens_per_second: ___, ...row } = optimum;
  const { n_experts, n_active, d_model } = row;
  return {
    memory_bytes: servingBytes(shape, limits, d_model, n_experts),
    ...row,
    ...(limits.speeds && { speed: speedOf(limits.speeds, optimum) }),
    training_flops: trainingFlops(row),
    inference_flops_per_token: INFERENCE_FLOPS * n_active,
    extrapolation: outsideRangesOf(law, shape, optimum),
  };
}

const isMixture = ({ n_experts }) => n_experts > 1;

// Whether a mixture or a dense model is better, and between which models the law cannot tell.
function verdictOf(data, { optima, best, bootstrap }) {
  const { tie, apart, columns } = data.verdict;
  const drawn = bootstrap?.optima ?? [];
  function mayBeBetter(row) {
    const behind = drawn.find(({ n_experts }) => n_experts === row.n_experts)?.behind;
    return behind != null && behind[0] <= 0;
  }
  const tied = optima.filter((row) => row.loss <= best.loss * (1 + tie));
  const notToldApart = optima.filter((row) => !tied.includes(row) && mayBeBetter(row));
  const candidates = [...tied, ...notToldApart];
  let choice = null;
  if (optima.length > 1) {
    choice = candidates.some(isMixture) ? "mixture" : "dense";
    if (choice === "mixture" && !candidates.every(isMixture)) choice = "undecided";
  }
  const lossesOfOtherKind = optima.filter((row) => isMixture(row) !== isMixture(best)).map(({ loss }) => loss);
  const differ = {};
  for (const name of Object.keys(columns)) {
    const values = tied.map((row) => row[name]);
    const low = Math.min(...values);
    const high = Math.max(...values);
    if (high >= apart * low) differ[name] = [low, high];
  }
  return {
    choice,
    tied: tied.map(({ n_experts }) => n_experts),
    not_told_apart: notToldApart.map(({ n_experts }) => n_experts),
    cost: bootstrap ? bootstrap.regret : tie * best.loss,
    margin: lossesOfOtherKind.length ? Math.min(...lossesOfOtherKind) - best.loss : null,
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
  if (limits.memory_bytes != null || limits.serving || limits.speeds) return false;
  if ((law.closed && law.counts_embedding) || law.fixes_experts) return false;
  const many = solve(lawAtExperts(law, shape, 1e6), 1e6, shape, limits);
  const more = solve(lawAtExperts(law, shape, 1e7), 1e7, shape, limits);
  return more.loss < many.loss * (1 - data.doubt.band);
}

// The optima by each bootstrap draw that has any: {draw, optima, best: lowest loss, planned: loss at planned experts}.
function solveDraws(law, shape, limits, experts, planned) {
  const largest = experts.map((n_experts) => largestSize(n_experts, shape, limits));
  const solved = [];
  drawsOf(law).forEach((coefficients, draw) => {
    const laws = experts.map((n_experts) => lawAtExperts(law, shape, n_experts, coefficients));
    if (!laws.every(falls)) return;
    const optima = laws.map((lawAt, i) => solve(lawAt, experts[i], shape, limits, largest[i]));
    solved.push({ draw, optima, best: bestOf(optima), planned: optima[experts.indexOf(planned)] });
  });
  return solved;
}

// Intervals at each number of experts, and how often each is the best, over the draws. planned: the plan's best.
function bootstrapOf(law, shape, limits, experts, planned) {
  const { form, percentiles, by, draws, source } = law.bootstrap;
  const solved = solveDraws(law, shape, limits, experts, planned);
  if (!solved.length) return null;
  const interval = (values) => percentiles.map((percent) => percentile(values, percent));
  function rowAt(n_experts, i) {
    const losses = solved.map(({ draw, optima }) => {
      return optima[i].loss * driftFactor(law, draw, flopsOfLaw(law, shape, optima[i]));
    });
    return {
      n_experts,
      best_in_draws: solved.filter(({ best }) => best.n_experts === n_experts).length,
      behind: interval(solved.map(({ optima, planned }) => optima[i].loss - planned.loss)),
      loss: interval(losses),
    };
  }
  const regrets = solved.map(({ planned, best }) => planned.loss - best.loss);
  const rows = experts.map((n_experts, i) => (solved[0].optima[i].feasible ? rowAt(n_experts, i) : null));
  return {
    form,
    percentiles,
    by,
    draws: solved.length,
    draws_without_optimum: draws.length - solved.length,
    regret: percentile(regrets, percentiles[1]),
    optima: rows.filter((row) => row != null),
    ...(source && { source }),
  };
}
