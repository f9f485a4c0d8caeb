"""A law with its coefficients and the models it was fitted to: a published preset, or the law.json that a fit wrote."""

import collections
import dataclasses
import json
import os
import statistics

import numpy as np

from fit import UserError, lawcheck, models
from fit.architecture import FLOPS_PER_PARAMETER_TRAINING as TRAINING
from fit.architecture import PAPER, Architecture
from fit.laws import FORMS
from fit.units import amount

EXPERTS = (1, 2, 4, 8, 16, 32)  # the paper's
ROUNDING = 5e-3  # less than this share outside a range is inside: three digits would not show it
PRESETS = {name: form for form, law in FORMS.items() for name in law.PRESETS}


@dataclasses.dataclass
class FittedLaw:
    """name: preset or file; form: key of FORMS; coefficients by name; record: all that stands in the file."""

    name: str
    form: str
    coefficients: dict
    record: dict

    @property
    def law(self):
        return FORMS[self.form]

    def predict(self, n_active, n_tokens, n_experts):
        """Loss in nats per token; arguments broadcast together; those that the law does not use may be anything."""
        log_loss = self.law.log_loss(
            self.law.to_free(self.coefficients),
            np.log(np.asarray(n_active, float)),
            np.log(np.asarray(n_tokens, float)),
            np.asarray(n_experts, float),
        )
        return np.exp(log_loss)

    def at_experts(self, n_experts):
        """(m, mu, n, nu, c) at each n_experts (Eq. 5); UserError where the law has no such form."""
        if not hasattr(self.law, "at_experts"):
            raise UserError(
                f"--law={self.name}: the {self.form} law knows no n_tokens, so it has no optimum of size and "
                f"tokens; use a law of form {' or '.join(f for f, law in FORMS.items() if hasattr(law, 'at_experts'))}"
            )
        return self.law.at_experts(self.coefficients, np.asarray(n_experts, float))

    @property
    def draws(self):
        """The bootstrap's coefficients by name, each [n_draws]; None where the law has none."""
        bootstrap = self.record.get("bootstrap")
        return bootstrap and dict(zip(self.law.COEFFICIENTS, np.array(bootstrap["draws"], float).T))

    @property
    def percentiles(self):
        """The ends of the bootstrap's intervals."""
        return self.record["bootstrap"]["percentiles"]

    @property
    def noise(self):
        """Standard deviation of a new run's log loss around the law, on a trunk of its own; None where it is not
        known."""
        return (self.record.get("noise") or {}).get("total")

    def predict_interval(self, n_active, n_tokens, n_experts, new_run=False):
        """(low, high) percentiles of the loss; needs draws. Of the law itself: over the bootstrap's draws. Of a new
        run (needs noise): over these and the run's own error, which no number of runs makes smaller."""
        free = np.stack([self.law.to_free(dict(zip(self.draws, row))) for row in zip(*self.draws.values())], axis=1)
        n_active, n_tokens, n_experts = np.broadcast_arrays(n_active, n_tokens, n_experts)
        shape, columns = n_active.shape, [v.astype(float).ravel() for v in (n_active, n_tokens, n_experts)]
        draws = free.shape[1]
        errors = np.zeros((draws, 1))
        if new_run:  # quantiles of the error, 20 for each draw, other ones for each
            at = (np.arange(20) + (np.arange(draws)[:, None] + 0.5) / draws) / 20
            errors = self.noise * np.vectorize(statistics.NormalDist().inv_cdf)(at)
        # the ends that so few draws must reach to hold as much as they claim: Weibull's positions, for all these
        # errors too
        levels = np.clip([(p * (draws + 1) - 50) / draws for p in self.percentiles], 0, 100)
        ends = np.empty((2, len(columns[0])))
        for part in range(0, len(columns[0]), 4096):  # draws times errors times models would not fit at once
            n, d, e = (v[part : part + 4096] for v in columns)
            law = self.law.log_loss(free[:, :, None], np.log(n), np.log(d), e)  # [draws, models]
            runs = (law[:, None] + errors[:, :, None]).reshape(-1, len(n))
            (low, high), of_law = (np.percentile(v, levels, axis=0, method="hazen") for v in (runs, law))
            ends[:, part : part + 4096] = np.minimum(low, of_law[0]), np.maximum(high, of_law[1])
        return np.exp(ends).reshape(2, *shape)

    @property
    def knows_experts(self):
        return "n_experts" in self.law.COLUMNS

    @property
    def published(self):
        """Whether this is a paper's law, not one that a fit wrote."""
        return self.name in PRESETS

    @property
    def models(self):
        """What is known of the models that the law was fitted to, as fit/models.py lists it; None where unknown."""
        return collections.defaultdict(lambda: None, self.record.get("models") or {})

    @property
    def architecture(self):
        """The Architecture that the law was fitted to; the paper's where it says nothing."""
        return self.shaped()

    def shaped(self, vocab_size=None, width_per_block=None):
        """The Architecture asked for; None takes the law's own. UserError where its runs had several, none in most."""
        asked = dict(vocab_size=vocab_size, width_per_block=width_per_block)
        for name in asked:
            found = (self.models["differing"] or {}).get(name)
            if asked[name] is None and self.models[name] is None and found:
                raise UserError(
                    f"--law={self.name}: its runs have {len(found)} values of {name} ({', '.join(map(str, found[:4]))}"
                    f"{', ...' if len(found) > 4 else ''}), none of them in most: say which by --{name}"
                )
            asked[name] = asked[name] or self.models[name] or getattr(PAPER, name)
        return Architecture(**asked, final_norm=bool(self.models["final_norm"]))

    @property
    def experts(self):
        """The numbers of experts that a plan compares unless told otherwise: those fitted, else the paper's."""
        return tuple(self.models["n_experts"] or EXPERTS) if self.knows_experts else (1,)

    @property
    def ranges(self):
        """{column: (low, high)} of the runs fitted: n_active, n_tokens, n_experts, training_flops, where known."""
        found = (self.record.get("runs") or {}).get("ranges") or {}
        names = ("n_active", "n_tokens", "n_experts", "training_flops")
        return {name: tuple(found[name]) for name in names if found.get(name)}

    def extrapolation(self, n_active=None, n_tokens=None, n_experts=None, flops=None):
        """What of these (numbers; flops of training, 6 n_active n_tokens unless given) lies outside what was fitted.

        Returns a list of {column, value, low, high, factor}, empty inside; `factor` > 1 says how far outside. The
        column unique_tokens is n_tokens against the tokens of the text that the law was fitted on (low is 0).
        """
        outside = []
        for column, (value, low, high) in self._asked(n_active, n_tokens, n_experts, flops).items():
            if not low * (1 - ROUNDING) <= value <= high * (1 + ROUNDING):
                factor = value / high if value > high else low / value
                outside.append(dict(column=column, value=float(value), low=low, high=high, factor=float(factor)))
        return outside

    def inside(self, n_active=None, n_tokens=None, n_experts=None, flops=None):
        """Whether extrapolation finds nothing, for arrays that broadcast together."""
        ranges = self._asked(n_active, n_tokens, n_experts, flops).values()
        fine = [(low * (1 - ROUNDING) <= value) & (value <= high * (1 + ROUNDING)) for value, low, high in ranges]
        return np.logical_and.reduce(np.broadcast_arrays(True, *fine))

    def _asked(self, n_active, n_tokens, n_experts, flops):
        """{column: (value asked, low, high)} of what is asked and known."""
        if flops is None and n_active is not None and n_tokens is not None:
            flops = TRAINING * n_active * n_tokens
        values = dict(n_active=n_active, n_tokens=n_tokens, n_experts=n_experts, training_flops=flops)
        columns = [name for name in (*self.law.COLUMNS, "training_flops") if name in self.ranges]
        asked = {name: (values[name], *self.ranges[name]) for name in columns if values[name] is not None}
        if "n_tokens" in self.law.COLUMNS and n_tokens is not None and self.models["unique_tokens"]:
            asked["unique_tokens"] = n_tokens, 0, self.models["unique_tokens"]
        return asked


def in_words(outside):
    """What FittedLaw.extrapolation found, in words for people: "n_tokens 7 times above 1.31M, ..."; "" for nothing."""
    words = []
    for o in outside:
        name, factor, high = o["column"], f"{amount(o['factor'])} times", o["value"] > o["high"]
        end = o["high"] if high else o["low"]
        end = f"{end:.3g}" if name == "training_flops" else amount(end)
        if name == "unique_tokens":
            words.append(f"n_tokens {factor} the {end} of the text")
        else:
            words.append(f"{name} {factor} {'above' if high else 'below'} {end}")
    return ", ".join(words)


def warning_of(outside):
    """The sentence that every command says of an answer outside what was fitted; "" for one inside."""
    return f"outside the fitted range: {in_words(outside)}" if outside else ""


def load(name):
    """The law of a preset's name or of a law.json; UserError if it is neither, or does not hold a whole law."""
    if name in PRESETS:
        preset = FORMS[PRESETS[name]].PRESETS[name]
        return FittedLaw(name, PRESETS[name], preset["coefficients"], preset)
    if not os.path.exists(name):
        raise UserError(f"--law={name}: no such file, nor a published law; published laws: {', '.join(PRESETS)}")
    try:
        with open(name, encoding="utf-8") as f:
            record = json.load(f)
    except OSError as e:
        raise UserError(f"--law={name}: cannot be read: {e.strerror}") from e
    except (ValueError, RecursionError) as e:
        raise UserError(f"--law={name}: is not JSON: {e}") from e
    if not isinstance(record, dict) or not isinstance(record.get("form"), str) or record["form"] not in FORMS:
        raise UserError(f"--law={name}: has no form that is one of {', '.join(FORMS)}")
    models.check(record.get("models"), f"--law={name}")
    law, coefficients = FORMS[record["form"]], record.get("coefficients")
    for key in law.COEFFICIENTS:
        value = coefficients.get(key) if isinstance(coefficients, dict) else None
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not np.isfinite(value):
            raise UserError(f"--law={name}: coefficient {key} is {json.dumps(value)}, expected a finite number")
    fitted = FittedLaw(name, record["form"], {k: float(coefficients[k]) for k in law.COEFFICIENTS}, record)
    with np.errstate(all="ignore"):
        if not np.all(np.isfinite(law.to_free(fitted.coefficients))):
            raise UserError(
                f"--law={name}: its coefficients make no law (a scale that is not positive, or E_start >= E_max)"
            )
    lawcheck.check(record, law, f"--law={name}")
    return fitted
