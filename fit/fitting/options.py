"""Options of `fit law`: the law's form, and how it is fitted to runs."""

import dataclasses
import os
from typing import cast

import numpy as np

from fit.errors import UserError
from fit.fitted_law.bounds import USUAL_PERCENTILES
from fit.fitted_law.law import Law
from fit.fitted_law.law_files import load
from fit.fitted_law.parts import WAYS_OF_DRAWING
from fit.fitted_law.settings import Settings
from fit.fitting.law_prior import NO_PRIOR
from fit.form import Form
from fit.laws import FORMS
from fit.options import (
    Options,
    choice,
    listed,
    number,
    of_python,
    option,
    or_path,
    pairs,
    switch,
    text,
    unchecked,
    whole,
    words,
)

MOST_DRAWS = 100_000  # of a bootstrap; each is a fit, and law.json holds all of them
OF_A_SINGLE_FORM = ("fix", "bootstrap", "select", "prior")  # options that need one form


def _percentiles(name: str, value: object) -> tuple[float, float]:
    """Two rising numbers from 0 to 100."""
    try:
        low, high = map(float, listed(value))
        if 0 <= low < high <= 100:
            return low, high
    except (TypeError, ValueError):
        pass
    typed = ",".join(map(str, listed(value)))
    raise UserError(f"--{name}={typed}: expected two rising numbers from 0 to 100, such as 10,90")


def _prior(name: str, value: object) -> Law | str:
    """A Law, or the text none, population or population:SOURCE."""
    if isinstance(value, str) and (value == "none" or value.partition(":")[0] == "population"):
        if value != "none":
            from fit.fitting import population

            population.left_out_of(value)  # raises UserError for an unknown source
        return value
    return load(cast(Law | str | os.PathLike, value), name)


@dataclasses.dataclass(kw_only=True)
class FitOptions(Options):
    """How a law is fitted to runs."""

    form: tuple[str, ...] | None = words(
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
    huber_delta: float = of_python(number("Residual of the log loss from which the Huber loss is linear.", 1e-2))
    reduction: str = of_python(choice("How the Huber losses of the runs are combined.", "sum", ("sum", "mean")))
    weights: str | None = of_python(
        text(
            "Weight of each run: none, inverse-loss (a run counts 1 / loss), compute^0.6 (that power of its FLOPs), or "
            "column:NAME. Default: none; without --form, compute^0.6."
        )
    )
    weight_decay: float | None = of_python(
        number(
            "Adds this / 2 times the squared parameters to the objective; the paper's is 1e-5. Default: 0, but for "
            "up to 60 runs, which may leave coefficients open, 0.01 times the variance of the runs (1e-6 for 1% of "
            "noise).",
            least=0,
        )
    )
    prior: Law | str | None = or_path(
        option(
            "string",
            "What is known of the exponents of size and data, and of k, before the runs speak: population (what laws "
            "of other sweeps have; population:SOURCE leaves a source of these out), a law.json or a published law's "
            "name, or none. Without --form, a law decides by its k, or lack of one, whether this one has a k. "
            "Default: none; without --form, population for dense runs that are at most 2 more than the coefficients.",
            None,
            _prior,
        )
    )
    starts: int | str = of_python(
        unchecked(
            "Number of random starts, scaled to the runs; or paper for the published grid (joint: 19,683).", "128"
        )
    )
    solver: str = choice(
        "How the best point is searched: default, Levenberg-Marquardt from random starts; or paper, as the joint law's "
        "paper does: L-BFGS from its published grid of starts, weight decay 1e-5, the start with the least error on "
        "fitted and held-out runs, and draws of 80% of the runs. Each part is an argument of fit.law in Python.",
        "default",
        ("default", "paper"),
    )
    algorithm: str = of_python(choice("Levenberg-Marquardt or L-BFGS.", "lm", ("lm", "lbfgs")))
    select: str = of_python(
        choice(
            "Which start wins: the lowest objective, or the lowest RMSE of fitted plus held-out runs, as in the paper.",
            "objective",
            ("objective", "rmse"),
        )
    )
    bootstrap: int = whole("Number of fits to resampled runs, for intervals; 100 is usual.", 0, most=MOST_DRAWS)
    bootstrap_form: str = of_python(
        choice(
            "What is resampled: the errors of the runs, the runs with replacement, or as in the paper 80% of the runs "
            "without replacement, whose intervals are about half as wide as they should be.",
            "errors",
            WAYS_OF_DRAWING,
        )
    )
    bootstrap_by: str = text(
        "Which runs share an error and are drawn together: trunk (those of a trunk, by the column run or by equal "
        "model, seed and config; else each run), row (each run), or a column. Profiles use it too.",
        "trunk",
    )
    percentiles: tuple[float, float] = of_python(
        option("list", "Ends of the bootstrap's intervals.", USUAL_PERCENTILES, _percentiles)
    )
    seed: int = of_python(whole("Seed of the starts and of the bootstrap.", 0))
    mix_corpora: bool = switch("Fit runs of several corpora together.")
    with_rate: bool = switch(
        "Fit the best learning rate and batch of each model, and what others cost, together with the law: the table "
        "has runs of a model at several peak_learning_rate and, for the batch, batch_tokens."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.solver == "paper":
            self._as_in_the_paper()
        if self.with_rate and str(self.starts) == "paper":
            raise UserError("--starts=paper: the published grid has no learning rates; leave it out with --with_rate")
        if self.with_rate and self.prior not in (None, NO_PRIOR):
            raise UserError("--prior: the fit of --with_rate has no prior; leave one of them out")
        typed = ",".join(self.form or ())
        if self.form is not None and not (self.form and set(self.form) <= set(FORMS)):
            raise UserError(f"--form={typed}: expected one or more of {', '.join(FORMS)}")
        rolling = self.holdout == "compute:rolling"
        of_a_single_form = [f"--{name}" for name in self.changed(*OF_A_SINGLE_FORM)]
        if rolling:
            of_a_single_form.append("--holdout=compute:rolling")
        if self.with_rate:
            of_a_single_form.append("--with_rate")
        if len(self.forms) > 1 and of_a_single_form:
            raise UserError(f"--form={typed}: {of_a_single_form[0]} is for a single form")
        if self.select == "rmse" and (rolling or self.holdout == "none"):
            raise UserError("--select=rmse needs held-out runs: give --holdout")
        if self.forms:
            _fixed(self.forms[0], self.fix)
        starts = str(self.starts)
        if starts != "paper" and not (starts.isdecimal() and int(starts) > 0):
            raise UserError(f"--starts={starts}: expected a positive whole number, or paper")
        self.starts = starts if starts == "paper" else int(starts)

    def _as_in_the_paper(self) -> None:
        """Sets what the paper does where nothing else is asked for."""
        of_paper: dict[str, object] = dict(
            algorithm="lbfgs", starts="paper", weight_decay=1e-5, bootstrap_form="paper", select="rmse"
        )
        if self.holdout in ("none", "compute:rolling"):
            del of_paper["select"]
        for name, value in of_paper.items():
            if not self.changed(name):
                setattr(self, name, value)

    @property
    def forms(self) -> list[Form]:
        """The Forms of `form`; empty where the runs decide."""
        return [FORMS[name] for name in self.form or ()]

    def settings(self, form: Form, quiet: bool = True) -> Settings:
        """The settings of the fit of a law of this form.

        Raises:
          UserError: `fix` names a coefficient that the law has not, or gives it a value that it cannot have.
        """
        shared = {field.name for field in dataclasses.fields(Settings)} & vars(self).keys()
        shared -= {"starts", "fix", "solver"}
        starts = 0 if self.starts == "paper" else int(self.starts)
        fix = dict(sorted(_fixed(form, self.fix).items()))
        return Settings(
            starts=starts, fix=fix, solver=self.algorithm, quiet=quiet, **{name: getattr(self, name) for name in shared}
        )


def _fixed(form: Form, typed: dict[str, str]) -> dict[str, float]:
    """The values of fixed coefficients. Raises UserError unless the law can have them."""
    flag = f"--fix={','.join(f'{name}={value}' for name, value in typed.items())}"
    fixed = {}
    for name, value in typed.items():
        of_logarithm = name.removeprefix("ln ")
        if name != of_logarithm and of_logarithm in form.names:
            raise UserError(f"{flag}: expected {of_logarithm} itself, not its logarithm: {of_logarithm}=e^({value})")
        if name not in form.names:
            raise UserError(
                f"{flag}: found {f'{name}={value}'!r}, expected NAME=VALUE once for each NAME; the {form.name} law's "
                f"coefficients: {', '.join(form.names)}"
            )
        try:
            fixed[name] = float(value)
        except ValueError:
            fixed[name] = float("nan")
        low, high = _bounds(form, name)
        if name in form.positive and fixed[name] < 0:
            raise UserError(
                f"{flag}: {name} is {value!r}, expected a number from {low:.3g} to {high:g}; a value below 0 can only "
                f"be its logarithm: say {name}={np.exp(fixed[name]):.4g} if that is what it is"
            )
        if not low <= fixed[name] <= high:
            raise UserError(f"{flag}: {name} is {value or 'nothing'!r}, expected a number from {low:.3g} to {high:g}")
    for name, coefficient in form.coefficients.items():
        if coefficient.above and fixed.get(coefficient.above, 0) >= fixed.get(name, float("inf")):
            raise UserError(f"{flag}: {coefficient.above} must be below {name}")
    if len(fixed) == len(form.names):
        raise UserError(f"{flag}: holds every coefficient of the {form.name} law, so nothing is left to fit")
    return fixed


def _bounds(form: Form, name: str) -> tuple[float, float]:
    """The least and the largest value at which a coefficient may be fixed."""
    if name in form.shares:
        return form.smallest_share(name), 1.0
    if name in form.positive:
        return 1e-6, 1e12
    return -20.0, 20.0
