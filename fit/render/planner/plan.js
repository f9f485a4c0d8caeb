// A plan: what `fit plan --json` prints, by the same names, without the model of whole blocks.

import { costOf } from "./cost.js";
import { INFERENCE_FLOPS, trainingFlops } from "./counts.js";
import { findingsOf } from "./findings.js";
import { outsideRangesOf } from "./law.js";
import { infeasibleReason } from "./messages.js";
import { oddsOf } from "./odds.js";
import { feasibleOf, optimaOf } from "./solve.js";
import { speedOf } from "./speeds.js";

/** The plan. Throws PlanError where nothing is feasible. @type {(options: Options) => Plan} */
export function planOf(options) {
  const { law, shape, experts, chips, limits } = options;
  const solved = optimaOf(law, shape, limits, experts);
  const optima = feasibleOf(solved).map((optimum) => planRow(law, optimum, shape, limits));
  const infeasible = solved.filter(({ feasible }) => !feasible).map(({ n_experts }) => {
    return { n_experts, why: infeasibleReason(shape, limits, [n_experts]) };
  });
  const odds = limits.speeds ? null : oddsOf(options, optima); // by hours `fit plan` draws speeds, too
  const [ofLeastLoss] = [...optima].sort((a, b) => a.loss - b.loss);
  const best = odds ? optima.find(({ n_experts }) => n_experts === odds.recommended) : ofLeastLoss;
  const { vocab_size, width_per_block } = shape;
  const plan = {
    law: law.name,
    form: law.form,
    vocab_size,
    width_per_block,
    constraints: printedLimits(limits),
    optima,
    infeasible,
    best,
    extrapolation: best.extrapolation,
    ...(odds && { odds }),
    best_at_edge: isAtEdge(law, best.n_experts, experts),
  };
  plan.findings = findingsOf(options, plan);
  if (chips) {
    const { serve_batch: _, mfu, ...trainingChips } = chips;
    plan.chips = limits.speeds ? trainingChips : { ...trainingChips, mfu };
    for (const row of optima) row.cost = costOf(chips, row, shape, limits);
  }
  return plan;
}

/** Whether a best number of experts is at an end of those compared; dense is no end.
 *  @type {(law: Law, best: Experts, experts: Experts[]) => boolean} */
export function isAtEdge(law, best, experts) {
  if (!law.chooses_experts || experts.length < 2) return false;
  return best === Math.max(...experts) || (best === Math.min(...experts) && best > 1);
}

function printedLimits({ budget, serving, speeds, ...limits }) {
  const { tokens_per_second: serve_tokens_per_second, batch: serve_batch } = serving ?? {};
  const printed = { ...limits, serve_tokens_per_second, serve_batch };
  return Object.fromEntries(Object.entries(printed).filter(([, value]) => value != null));
}

function planRow(law, optimum, shape, limits) {
  const { feasible: _, n_blocks: __, tokens_per_second: ___, ...row } = optimum;
  return {
    ...row,
    ...(limits.speeds && { speed: speedOf(limits.speeds, optimum) }),
    training_flops: trainingFlops(row),
    inference_flops_per_token: INFERENCE_FLOPS * row.n_active,
    extrapolation: outsideRangesOf(law, shape, optimum),
  };
}
