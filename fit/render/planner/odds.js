// How sure the number of experts is by the law's draws: fit/planning/odds.py without speeds, and what to measure.

import { drawsOf, driftFactor, falls, flopsOfLaw, lawAtExperts, percentile } from "./law.js";
import { largestSize, solve } from "./solve.js";

const GAIN = 0.01; // share of tokens more that says what tokens are worth

/** The odds of a plan by FLOPs: fields of `odds` in `fit plan --json`.
 *  @type {(data: Data, law: Law, shape: Shape, limits: Limits, optima: Optimum[]) => Odds} */
export function oddsOf(data, law, shape, limits, optima) {
  const experts = optima.map(({ n_experts }) => n_experts);
  const solved = solveDraws(law, shape, limits, experts);
  const n_draws = solved.length;
  const isDrawn = n_draws > 0;
  if (!isDrawn) solved.push(ofDraw(experts.map((n_experts) => lawAtExperts(law, shape, n_experts)), optima, null));
  const { percentiles = [10, 90], form, by, draws = [] } = law.bootstrap ?? {};
  const expected = experts.map((_, i) => mean(solved.map(({ losses }) => losses[i])));
  const order = experts.map((_, i) => i).sort((i, j) => expected[i] - expected[j] || i - j);
  const [first, second] = order;
  const interval = (values) => percentiles.map((percent) => percentile(values, percent));
  const rows = experts.map((n_experts, i) => {
    const regrets = solved.map(({ losses, least }) => losses[i] - least);
    const drifted = solved.map(({ draw, losses, optima: models }) => {
      return losses[i] * (draw == null ? 1 : driftFactor(law, draw, flopsOfLaw(law, shape, models[i])));
    });
    return {
      n_experts,
      best_in_draws: isDrawn ? solved.filter(({ best }) => best === i).length : 0,
      expected_loss: expected[i],
      regret: [mean(regrets), percentile(regrets, 90)],
      behind: interval(solved.map(({ losses }) => losses[i] - losses[first])),
      loss: interval(drifted),
    };
  });
  const mixtures = rows.filter(isMixture).reduce((sum, { best_in_draws }) => sum + best_in_draws, 0);
  const odds = {
    drawn: isDrawn ? ["law"] : [],
    draws: n_draws,
    draws_without_optimum: draws.length - n_draws,
    ...(law.bootstrap && { form, by }),
    ...(isDrawn && { percentiles, mixture_in_draws: mixtures }),
    experts: rows,
    recommended: experts[first],
    by_median: experts[indexOfLeast(optima.map(({ loss }) => loss))],
    kind: null,
    settled: null,
    second: second == null ? null : experts[second],
    close_call: [],
    differ: {},
  };
  if (second == null) return odds;
  const share = isDrawn ? mixtures / solved.length : Number(isMixture(rows[first]));
  odds.kind = share >= data.odds.decided ? "mixture" : share <= 1 - data.odds.decided ? "dense" : "undecided";
  odds.behind_share = shareBeyond(solved, first, second);
  const behind = expected[second] - expected[first];
  const isClose = behind <= data.odds.close * expected[first] || odds.behind_share <= data.odds.close_budget;
  if (isDrawn) odds.settled = !isClose && rows[first].best_in_draws >= data.odds.decided * solved.length;
  if (!isClose) return odds;
  return { ...odds, close_call: [experts[first], experts[second]], differ: differing(data, optima, [first, second]) };
}

const isMixture = ({ n_experts }) => n_experts > 1;

const indexOfLeast = (values) => values.indexOf(Math.min(...values));

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// The best models in each draw that has any.
function solveDraws(law, shape, limits, experts) {
  const largest = experts.map((n_experts) => largestSize(n_experts, shape, limits));
  const solved = [];
  drawsOf(law).forEach((coefficients, draw) => {
    const laws = experts.map((n_experts) => lawAtExperts(law, shape, n_experts, coefficients));
    if (!laws.every(falls)) return;
    const optima = laws.map((lawAt, i) => solve(lawAt, experts[i], shape, limits, largest[i]));
    solved.push(ofDraw(laws, optima, draw));
  });
  return solved;
}

// A draw with its models, their losses, the index of the best, and how much ln loss falls with ln tokens.
function ofDraw(laws, optima, draw) {
  const losses = optima.map(({ loss }) => loss);
  const best = indexOfLeast(losses);
  const gains = optima.map(({ n_active, n_tokens, loss }, i) => {
    return Math.log(loss / laws[i].loss(n_active, n_tokens * (1 + GAIN))) / Math.log1p(GAIN);
  });
  return { draw, optima, losses, best, least: losses[best], gains };
}

// How much more of the budget the second needs for the loss of the first, in the mean.
function shareBeyond(solved, first, second) {
  const gain = mean(solved.map(({ gains }) => gains[first]));
  const loss = mean(solved.map(({ losses }) => losses[first]));
  const behind = mean(solved.map(({ losses }) => losses[second])) - loss;
  return Math.expm1(behind / (gain * loss));
}

// {column: [least, most]} of the columns that set two models apart.
function differing(data, optima, pair) {
  const differ = {};
  for (const name of Object.keys(data.odds.columns)) {
    const values = pair.map((i) => optima[i][name]);
    const ends = [Math.min(...values), Math.max(...values)];
    if (ends[1] >= data.odds.apart * ends[0]) differ[name] = ends;
  }
  return differ;
}
