// A plan: what `fit plan --json` prints, by the same names, without the model of whole blocks.

import { costOf } from "./cost.js";
import { INFERENCE_FLOPS, servingBytes, trainingFlops } from "./counts.js";
import { lawAtExperts, outsideRangesOf } from "./law.js";
import { infeasibleReason, warningsOf } from "./messages.js";
import { oddsOf } from "./odds.js";
import { bestOf, feasibleOf, optimaOf, solve } from "./solve.js";
import { speedOf } from "./speeds.js";

/** The plan, its limits, and what its second number of experts costs as a share of the budget. Throws PlanError where
 *  nothing is feasible.
 *  @type {(data: Data, law: Law, options: Options) => {plan: Plan, limits: Limits, behind_share?: number}} */
export function planOf(data, law, options) {
  const { shape, experts, chips, limits } = options;
  const solved = optimaOf(law, shape, limits, experts);
  const optima = feasibleOf(solved).map((optimum) => planRow(law, optimum, shape, limits));
  let chosen = bestOf(solved).n_experts;
  let odds = null; // by hours `fit plan` draws speeds, too
  let behind_share;
  if (!limits.speeds) {
    ({ behind_share, ...odds } = oddsOf(data, law, shape, limits, optima));
    chosen = odds.recommended;
  }
  const best = optima.find(({ n_experts }) => n_experts === chosen);
  const infeasible = solved.filter(({ feasible }) => !feasible).map(({ n_experts }) => {
    return { n_experts, why: infeasibleReason(shape, limits, [n_experts]) };
  });
  const { vocab_size, width_per_block } = shape;
  const constraints = printedLimits(limits);
  const plan = { law: law.name, form: law.form, vocab_size, width_per_block, constraints, optima, infeasible, best };
  plan.extrapolation = best.extrapolation;
  if (odds) plan.odds = odds;
  plan.best_at_edge = isAtEdge(law, best.n_experts, experts);
  const isLargest = best.n_experts === Math.max(...experts);
  const wantsMore = plan.best_at_edge && isLargest && isNotBounded(data, law, shape, limits);
  plan.warnings = warningsOf(data, law, shape, plan, experts, wantsMore);
  if (chips) {
    const { serve_batch: _, mfu, ...trainingChips } = chips;
    plan.chips = limits.speeds ? trainingChips : { ...trainingChips, mfu };
    for (const row of optima) row.cost = costOf(data, chips, row, shape, limits);
  }
  return { plan, limits, behind_share };
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

// Whether, without a limit on memory, the loss still falls at numbers of experts far beyond any that can be built.
function isNotBounded(data, law, shape, limits) {
  if (limits.memory_bytes != null || limits.serving || limits.speeds) return false;
  if ((law.closed && law.counts_embedding) || law.fixes_experts) return false;
  const many = solve(lawAtExperts(law, shape, 1e6), 1e6, shape, limits);
  const more = solve(lawAtExperts(law, shape, 1e7), 1e7, shape, limits);
  return more.loss < many.loss * (1 - data.doubt.band);
}
