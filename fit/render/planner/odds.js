// How sure the number of experts is by the law's draws: fit/planning/uncertainty/odds.py without speeds, and what to measure.

import { data } from "./data.js";
import { drawsOf, driftFactor, falls, flopsOfLaw, lawAtExperts, percentile } from "./law.js";
import { largestWidth, solve } from "./solve.js";

/** The odds of a plan by FLOPs: fields of `odds` in `fit plan --json`.
 *  @type {(options: Options, optima: Optimum[]) => Odds} */
export function oddsOf(options, optima) {
  const { close, close_budget } = data.odds;
  const { law } = options;
  const draws = solveDraws(options, optima, drawsOf(law));
  const own = { coefficients: law.coefficients, drift: null }; // in place of draws where there are none
  const experts = rowsOf(options, draws.length ? draws : solveDraws(options, optima, [own]));
  const [first, second] = [...experts].sort((a, b) => a.expected_loss - b.expected_loss);
  const odds = {
    drawn: draws.length ? ["law"] : [],
    draws: draws.length,
    experts,
    recommended: first.n_experts,
    by_median: optima[indexOfLeast(optima.map(({ loss }) => loss))].n_experts,
    second: second?.n_experts ?? null,
    close_call: [],
    differ: {},
  };
  if (draws.length) {
    const mixtures = experts.filter(({ n_experts }) => n_experts > 1);
    odds.mixture_in_draws = mixtures.reduce((sum, { best_in_draws }) => sum + best_in_draws, 0);
    odds.percentiles = law.bootstrap.percentiles;
  }
  if (second == null) return odds;
  const behind = second.expected_loss - first.expected_loss;
  const isClose = behind <= close * first.expected_loss || shareBeyond(first, second) <= close_budget;
  if (!isClose) return odds;
  odds.close_call = [first.n_experts, second.n_experts];
  odds.differ = differing(odds.close_call.map((e) => optima.find(({ n_experts }) => n_experts === e)));
  return odds;
}

/** How much more of the budget the second number of experts needs for the loss of the first, in the mean.
 *  @type {(first: object, second: object) => number} */
export function shareBeyond(first, second) {
  return Math.max((1 + second.regret_share[0]) / (1 + first.regret_share[0]) - 1, 0);
}

function indexOfLeast(values) {
  return values.indexOf(Math.min(...values));
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

// How each number of experts fares in the draws.
function rowsOf({ law, shape }, draws) {
  const losses = draws[0].optima.map((_, i) => draws.map(({ optima }) => optima[i].loss));
  const expected = losses.map(mean);
  const first = indexOfLeast(expected);
  const worth = mean(draws.map(({ gains }) => gains[first])) * expected[first]; // nats for each factor of e
  const shareOf = (nats) => Math.expm1(Math.min(nats / worth, data.odds.most_log_share));
  return draws[0].optima.map(({ n_experts }, i) => {
    const regrets = draws.map(({ best }, draw) => losses[i][draw] - losses[best][draw]);
    const drifted = draws.map(({ drift, optima }, draw) => {
      return losses[i][draw] * driftFactor(law, drift, flopsOfLaw(law, shape, optima[i]));
    });
    const { percentiles = [10, 90] } = law.bootstrap ?? {};
    return {
      n_experts,
      best_in_draws: draws.filter(({ drift, best }) => drift != null && best === i).length,
      expected_loss: expected[i],
      regret_share: [mean(regrets), percentile(regrets, 90)].map(shareOf),
      loss: percentiles.map((percent) => percentile(drifted, percent)),
    };
  });
}

// Each draw that has an optimum everywhere: its models, the index of the best of them, and how much ln loss falls with
// ln tokens.
function solveDraws({ law, shape, limits }, optima, draws) {
  const { gain } = data.odds; // share of tokens more that says what tokens are worth
  const experts = optima.map(({ n_experts }) => n_experts);
  const largest = experts.map((n_experts) => largestWidth(n_experts, shape, limits));
  const solved = [];
  for (const { coefficients, drift } of draws) {
    const laws = experts.map((n_experts) => lawAtExperts(law, shape, n_experts, coefficients));
    if (!laws.every(falls)) continue;
    const models = laws.map((lawAt, i) => solve(lawAt, experts[i], shape, limits, largest[i]));
    const gains = models.map((model, i) => {
      return Math.log(model.loss / laws[i].loss(model, model.n_tokens * (1 + gain))) / Math.log1p(gain);
    });
    solved.push({ drift, optima: models, best: indexOfLeast(models.map(({ loss }) => loss)), gains });
  }
  return solved;
}

// {column: [least, most]} of the columns that set two models apart.
function differing(models) {
  const differ = {};
  for (const name of Object.keys(data.odds.columns)) {
    const values = models.map((model) => model[name]);
    const ends = [Math.min(...values), Math.max(...values)];
    if (ends[1] >= data.odds.apart * ends[0]) differ[name] = ends;
  }
  return differ;
}
