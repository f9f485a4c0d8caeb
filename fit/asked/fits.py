"""What is asked of a fit: the law's form, and how it is fitted."""

import dataclasses
import os
from typing import TYPE_CHECKING, cast

from fit.asked.fields import Asked, choice, field, free, listed, number, pairs, several, switch, text, whole
from fit.errors import UserError
from fit.fitted_law.law import Law, load
from fit.fitted_law.law_check import WAYS_OF_DRAWING
from fit.form import Form
from fit.laws import FORMS

if TYPE_CHECKING:
    from fit.fitting import problem

ALONE = ("fix", "bootstrap", "select", "prior")  # what is for a single form


def _percentiles(name: str, value: object) -> tuple[float, float]:
    try:
        low, high = map(float, listed(value))
        if 0 <= low < high <= 100:
            return low, high
    except (TypeError, ValueError):
        pass
    given = ",".join(map(str, listed(value)))
    raise UserError(f"--{name}={given}: expected two rising numbers from 0 to 100, such as 10,90")


def _prior(name: str, value: object) -> "Law | str":
    """A Law, or the text none, population or population:SOURCE."""
    if isinstance(value, str) and (value == "none" or value.partition(":")[0] == "population"):
        from fit.fitting import population

        if value != "none":
            population.left_out_of(value)  # which checks the source
        return value
    return load(cast(Law | str | os.PathLike, value), name)


@dataclasses.dataclass(kw_only=True)
class Fit(Asked):
    """How a law is fitted to runs."""

    form: tuple[str, ...] | None = several(
        f"The law: {', '.join(FORMS)}. Several are fitted to the same runs and compared; none is written. Default: "
        "joint or joint_coupled (with one number of experts chinchilla or chinchilla_coupled), by how they predict "
        "the runs of more compute from those of less; where the runs are too few to say, the coupled one.",
        None,
    )
    holdout: str = text(
        "Runs kept out of the fit: lowest-loss:30, largest-compute:3, "
        "largest-compute:20%, or column:NAME (rows where it is validation, holdout, true or 1). compute:rolling fits "
        "the runs of at most 1/2, 1/3 and 1/10 of the largest compute and predicts the others; the law that is written "
        "is fitted to all.",
        "none",
    )
    fix: dict[str, str] = pairs("Coefficients held at a value: E_max=290.4521,c=1.2.", "NAME=VALUE", "=")
    huber_delta: float = number("Residual of the log loss from which the Huber loss is linear.", 1e-2)
    reduction: str = choice("How the Huber losses of the runs are combined.", "sum", ("sum", "mean"))
    weights: str | None = text(
        "Weight of each run: none, inverse-loss (a run counts 1 / loss), compute^0.6 (that power of its FLOPs), or "
        "column:NAME. Default: none; without --form, compute^0.6."
    )
    weight_decay: float | None = number(
        "Adds this / 2 times the squared parameters to the objective; the paper's is 1e-5. Default: 0, but for "
        "up to 60 runs, which may leave coefficients open, 0.01 times the variance of the runs (1e-6 for 1% of noise).",
        least=0,
    )
    prior: Law | str | None = field(
        "string",
        "What is known of the exponents of size and data, and of k, before the runs speak: population (what laws of "
        "other sweeps have; population:SOURCE leaves a source of these out), a law.json or the name of a published "
        "law, or none. Without --form, a law decides by its k, or lack of one, whether this one has a k. Default: "
        "population without --form, else none.",
        None,
        _prior,
    )
    starts: int | str = free(
        "Number of random starts, scaled to the runs; or paper for the published grid (joint: 19,683).", "128"
    )
    solver: str = choice("Levenberg-Marquardt, or L-BFGS as in the paper.", "lm", ("lm", "lbfgs"))
    select: str = choice(
        "Which start wins: the lowest objective, or the lowest RMSE of fitted plus held-out runs, as in the paper.",
        "objective",
        ("objective", "rmse"),
    )
    bootstrap: int = whole("Number of fits to resampled runs, for intervals; 100 is usual.", 0)
    bootstrap_form: str = choice(
        "What is resampled: the errors of the runs, the runs with replacement, or as in the paper 80% of the runs "
        "without replacement, whose intervals are about half as wide as they should be.",
        "errors",
        WAYS_OF_DRAWING,
    )
    bootstrap_by: str = text(
        "Which runs share an error and are drawn together: trunk (those of a trunk, by the column run or by equal "
        "model, seed and config; else each run), row (each run), or a column. Profiles use it too.",
        "trunk",
    )
    percentiles: tuple[float, float] = field("list", "Ends of the bootstrap's intervals.", (10.0, 90.0), _percentiles)
    seed: int = whole("Seed of the starts and of the bootstrap.", 0)
    mix_corpora: bool = switch("Fit runs of several corpora together.")

    def __post_init__(self) -> None:
        super().__post_init__()
        given = ",".join(self.form or ())
        if self.form is not None and not (self.form and set(self.form) <= set(FORMS)):
            raise UserError(f"--form={given}: expected one or more of {', '.join(FORMS)}")
        rolling = self.holdout == "compute:rolling"
        alone = [f"--{name}" for name in self.given(*ALONE)] + ["--holdout=compute:rolling"] * rolling
        if len(self.forms) > 1 and alone:
            raise UserError(f"--form={given}: {alone[0]} is for a single form")
        if self.select == "rmse" and (rolling or self.holdout == "none"):
            raise UserError("--select=rmse needs held-out runs: give --holdout")
        for form in self.forms[:1]:
            _held(form, self.fix)
        starts = str(self.starts)
        if starts != "paper" and not (starts.isdecimal() and int(starts) > 0):
            raise UserError(f"--starts={starts}: expected a positive whole number, or paper")
        self.starts = starts if starts == "paper" else int(starts)

    @property
    def forms(self) -> list[Form]:
        """The Forms of `form`; none where it is left to the runs."""
        return [FORMS[name] for name in self.form or ()]

    def settings(self, form: Form, quiet: bool = True) -> "problem.Settings":
        """Of the fit of a law of this Form. Raises UserError where it has none of the coefficients to hold."""
        from fit.fitting.problem import Settings

        same = {field.name for field in dataclasses.fields(Settings)} & vars(self).keys() - {"starts", "fix"}
        starts, fix = 0 if self.starts == "paper" else int(self.starts), tuple(sorted(_held(form, self.fix).items()))
        return Settings(starts=starts, fix=fix, quiet=quiet, **{name: getattr(self, name) for name in same})


def _held(form: Form, given: dict[str, str]) -> dict[str, float]:
    """The coefficients held. Raises UserError unless the law can have them."""
    held, flag = {}, f"--fix={','.join(f'{name}={value}' for name, value in given.items())}"
    for name, value in given.items():
        if name not in form.names:
            raise UserError(
                f"{flag}: found {f'{name}={value}'!r}, expected NAME=VALUE once for each NAME; the {form.name} law's "
                f"coefficients: {', '.join(form.names)}"
            )
        try:
            held[name] = float(value)
        except ValueError:
            held[name] = float("nan")
        if name in form.shares:
            low, high = form.smallest_share(name), 1.0
        elif name in form.positive:
            low, high = 1e-6, 1e12
        else:
            low, high = -20.0, 20.0
        if not low <= held[name] <= high:
            raise UserError(f"{flag}: {name} is {value or 'nothing'!r}, expected a number from {low:.3g} to {high:g}")
    for name, coefficient in form.coefficients.items():
        if coefficient.above and held.get(coefficient.above, 0) >= held.get(name, float("inf")):
            raise UserError(f"{flag}: {coefficient.above} must be below {name}")
    if len(held) == len(form.names):
        raise UserError(f"{flag}: holds every coefficient of the {form.name} law, so nothing is left to fit")
    return held
