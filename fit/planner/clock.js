// Hours as a budget: how fast models of each size and number of experts train, as fit/planning/clock.py says.

export const SECONDS_OF_AN_HOUR = 3600;
// By which ln speed falls at least from one timed model to the next, so that each speed has one size.
const STEEPER = 1e-9;
const PARTS_BETWEEN = 8; // into which a search divides the sizes between two timed models

// The value at x on straight lines between points (xs, ys), xs rising; outside them that of the nearest point.
function interpolate(x, xs, ys) {
  const last = xs.length - 1;
  if (!(x > xs[0])) return ys[0];
  if (x >= xs[last]) return ys[last];
  let below = 0;
  let above = last;
  while (above - below > 1) {
    const middle = (below + above) >> 1;
    if (xs[middle] <= x) below = middle;
    else above = middle;
  }
  return ys[below] + ((ys[above] - ys[below]) / (xs[above] - xs[below])) * (x - xs[below]);
}

/** The curve through timed models. isBounded: whether the chips train no larger model.
 *  @type {(timed: TimedModel[], isBounded: boolean) => SpeedCurve} */
export function curveOf(timed, isBounded) {
  const models = [...timed].sort((a, b) => a.n_active - b.n_active);
  const logSizes = models.map(({ n_active }) => Math.log(n_active));
  const logSpeeds = models.map(({ tokens_per_second }) => Math.log(tokens_per_second));
  for (let i = models.length - 2; i >= 0; i--) {
    logSpeeds[i] = Math.max(logSpeeds[i], logSpeeds[i + 1]); // a smaller model is at least as fast as each larger one
  }
  const falling = logSpeeds.map((logSpeed, i) => logSpeed - STEEPER * i);
  const rising = falling.map((logSpeed) => -logSpeed);
  const largest = isBounded ? Math.exp(logSizes.at(-1)) : Infinity;
  return { logSizes, logSpeeds: falling, logSlowness: rising, searched: searchedSizes(logSizes), largest };
}

// Logarithms of the sizes that a search looks at: those of timed models, and between each two of them.
function searchedSizes(logSizes) {
  return logSizes.flatMap((low, i) => {
    const parts = i + 1 < logSizes.length ? PARTS_BETWEEN : 1;
    return Array.from({ length: parts }, (_, k) => low + (k / PARTS_BETWEEN) * ((logSizes[i + 1] ?? low) - low));
  });
}

/** The curve of a number of experts, or of the nearest that there is.
 *  @type {(clock: Clock, n_experts: Experts) => SpeedCurve} */
export function curveAt({ curves }, n_experts) {
  if (curves.has(n_experts)) return curves.get(n_experts);
  const distance = (known) => Math.abs(Math.log(known / n_experts));
  const known = [...curves.keys()].sort((a, b) => a - b);
  const nearest = known.reduce((best, next) => (distance(next) < distance(best) ? next : best));
  return curves.get(nearest);
}

/** Tokens per second of all chips with a model of this size.
 *  @type {(clock: Clock, n_experts: Experts, n_active: Parameters) => number} */
export function speedAt(clock, n_experts, n_active) {
  const { logSizes, logSpeeds } = curveAt(clock, n_experts);
  const logSize = Math.log(n_active);
  const aboveLargest = Math.max(logSize - logSizes.at(-1), 0);
  return Math.exp(interpolate(logSize, logSizes, logSpeeds) - aboveLargest);
}

/** The largest size that trains on so many tokens, those of inference included, in the hours; 0 where none does.
 *  @type {(clock: Clock, n_experts: Experts, n_tokens: Tokens) => Parameters} */
export function sizeWithin(clock, n_experts, n_tokens) {
  const { logSizes, logSpeeds, logSlowness } = curveAt(clock, n_experts);
  const logSpeed = Math.log(n_tokens / (SECONDS_OF_AN_HOUR * clock.hours));
  if (logSpeed > logSpeeds[0]) return 0;
  const aboveLargest = Math.max(logSpeeds.at(-1) - logSpeed, 0);
  return Math.exp(interpolate(-logSpeed, logSlowness, logSizes) + aboveLargest);
}

/** The largest size that the chips train: infinite without a bound, 0 where they train none.
 *  @type {(clock: Clock, n_experts: Experts) => Parameters} */
export function largestTrained(clock, n_experts) {
  return clock.untrainable.includes(n_experts) ? 0 : curveAt(clock, n_experts).largest;
}
