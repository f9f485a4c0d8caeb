"""A law with its coefficients: a published preset, or the law.json that a fit wrote."""

import dataclasses
import json
import os

import numpy as np
import scipy.special

from fit import UserError, lawcheck
from fit.laws import FORMS

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
        columns = np.log(np.asarray(n_active, float)), np.log(np.asarray(n_tokens, float)), np.asarray(n_experts, float)
        return np.exp(self.law.log_loss(self.law.to_free(self.coefficients), *columns))

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
        """Standard deviation of a new run's log loss around the law, on a trunk of its own; None where it is not known."""
        return (self.record.get("noise") or {}).get("total")

    def predict_interval(self, n_active, n_tokens, n_experts, new_run=False):
        """(low, high) percentiles of the loss; needs draws. Of the law itself: over the bootstrap's draws. Of a new run (needs
        noise): over these and the run's own error, which no number of runs makes smaller."""
        free = np.stack([self.law.to_free(dict(zip(self.draws, row))) for row in zip(*self.draws.values())])
        columns = np.broadcast_arrays(n_active, n_tokens, n_experts)
        shape, columns = columns[0].shape, [np.asarray(v, float).ravel() for v in columns]
        errors = self.noise * scipy.special.ndtri((np.arange(20) + 0.5) / 20) if new_run else np.zeros(1)
        ends = np.empty((2, columns[0].size))
        for part in range(0, columns[0].size, 4096):  # draws times errors times models would not fit at once
            n, d, e = (v[part : part + 4096] for v in columns)
            drawn = np.stack([self.law.log_loss(row, np.log(n), np.log(d), e) for row in free])
            drawn = (drawn[:, None] + errors[:, None]).reshape(-1, len(n))
            ends[:, part : part + 4096] = np.percentile(drawn, self.percentiles, axis=0, method="weibull")
        return np.exp(ends).reshape(2, *shape)

    @property
    def knows_experts(self):
        return "n_experts" in self.law.COLUMNS


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
