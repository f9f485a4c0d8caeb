// Findings of a plan as in fit/planning/context/plan_findings.py, but for those that its lines say in other words.

import { embeddingAndHead } from "./counts.js";
import { data } from "./data.js";
import { lawAtExperts } from "./law.js";
import { finding } from "./messages.js";
import { solve } from "./solve.js";

/** The findings of a plan. @type {(options: Options, plan: Plan) => Finding[]} */
export function findingsOf(options, plan) {
  return [...ofBest(options, plan), ...ofLaw(options)];
}

function* ofBest(options, { best, best_at_edge }) {
  const { law, shape, experts } = options;
  const guess = Math.log(shape.vocab_size); // loss of a uniform guess
  if (best.loss > guess) yield finding("worse_than_guess", { loss: best.loss, guess, vocab_size: shape.vocab_size });
  if (best.extrapolation.length && law.beyond_runs) yield law.beyond_runs;
  const ratio = best.n_tokens / best.n_active;
  if (ratio < 0.1 || ratio > 1e5) yield finding("tokens_per_parameter", { what: "the model has", ratio });
  const share = (embeddingAndHead(shape) * best.d_model) / best.n_active;
  if (share > data.doubt.mostly) yield finding("mostly_embedding", { share, vocab_size: shape.vocab_size });
  const wantsMore = best_at_edge && best.n_experts === Math.max(...experts);
  if (wantsMore && isNotBounded(options)) yield finding("not_bounded");
}

// Whether, without a limit on memory, the loss still falls at numbers of experts far beyond any that can be built.
function isNotBounded({ law, shape, limits }) {
  if (limits.memory_bytes != null || limits.serving || limits.speeds) return false;
  if (law.closed && law.counts_embedding) return false;
  const many = solve(lawAtExperts(law, shape, 1e6), 1e6, shape, limits);
  const more = solve(lawAtExperts(law, shape, 1e7), 1e7, shape, limits);
  return more.loss < many.loss * (1 - data.doubt.band);
}

// Findings on what the law does not know of such models; those of Python are for models of the usual sizes.
function ofLaw({ law, shape, like }) {
  const isPapersSize = ["vocab_size", "width_per_block"].every((name) => shape[name] === data.paper_shape[name]);
  return law.findings[like].filter(({ code }) => code !== "shape_unknown" || isPapersSize);
}
