"""fit from Python: its commands as functions, which the commands call themselves.

Arguments have the flags' names, with numbers, lists, arrays and dictionaries as values; `asked` holds the same in one
dataclass of fit.asked. A law is a Law, a law.json or the name of a published law; runs are what `read` takes. A value
that cannot be raises UserError, which names it; an argument that there is not raises TypeError, which lists those
there are.
"""

import contextlib
import html
import json
import os
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from fit.architecture_search import holistic as holistic_laws
from fit.architecture_search import holistic_runs, holistic_text
from fit.asked import fits, plans, searches
from fit.data import sense
from fit.data.files import check_writable, write_text
from fit.data.table import Table, plain, read, write
from fit.equal_flops import surface as surfaces
from fit.errors import UserError
from fit.fitted_law import summary
from fit.fitted_law.law import Law, load
from fit.laws import FORMS
from fit.next_runs import added, next_text
from fit.planning import compare as comparing
from fit.planning import plan_answer, plan_text
from fit.planning import speedup as speeding

DEFAULT_LAW = "joint-moe-2025"


class Answer:
    """What a function returns: each field of its command's JSON is an attribute, and vars() has all of them; str() is
    the command's text, which a notebook shows too."""

    __slots__ = ("__dict__", "_name", "_text")

    def __init__(self, name: str, text: Callable[[dict], str], fields: dict) -> None:
        vars(self).update(fields)
        self._name, self._text = name, text

    def __str__(self) -> str:
        return self._text(vars(self))

    def __repr__(self) -> str:
        return f"<{self._name}: {str(self).partition(chr(10))[0]}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


def save(law: Law, path: str | os.PathLike) -> None:
    """Writes a law from `fit.law` as a law.json. Raises UserError where it cannot be written."""
    write_text(str(path), json.dumps(plain(law.record), indent=1, allow_nan=False) + "\n")


def law(
    runs: object, form: str | None = None, *, asked: fits.Fit | None = None, quiet: bool = True, **options: object
) -> Law:
    """Fits a law to runs, of this form or, without one, of the form that predicts the larger runs better from the
    smaller ones: holdout="largest-compute:3", bootstrap=100, fix={"c": 1.2}, seed=1, ...

    Losses are in nats per token. The law's `record` is what law.json holds, including errors and warnings. quiet: no
    progress on stderr. Raises UserError for a bad value in runs or options.
    """
    asked, runs = asked or fits.Fit.of("law", options | dict(form=form)), read(runs)
    sense.check(runs)
    if len(asked.forms) > 1:
        raise UserError(f"--form={','.join(asked.form or ())}: expected a single form")
    with _float64():
        from fit.fitting import fitting, forms, solvers

        with solvers.compilation_cache():
            if asked.forms:
                asked_for = forms.with_prior(asked.forms[0], asked.prior)
                fitted = fitting.fit_table(runs, asked_for, asked.settings(asked_for, quiet))
                record = fitting.record_of(fitted)
            else:
                record = forms.fit_best(runs, lambda form: asked.settings(form, quiet), asked.prior)
    record = json.loads(json.dumps(plain(record), allow_nan=False))  # as a law.json would be read
    chosen = FORMS[record["form"]]
    return Law("the fitted law", chosen, {name: float(record["coefficients"][name]) for name in chosen.names}, record)


def compare_forms(runs: object, *, asked: fits.Fit, quiet: bool = True) -> dict:
    """How well each of several forms fits runs (form_comparison.compare). Raises UserError as `law`."""
    runs = read(runs)
    sense.check(runs)
    with _float64():
        from fit.fitting import form_comparison, solvers

        with solvers.compilation_cache():
            found = form_comparison.compare(runs, asked.forms, asked.settings(asked.forms[0], quiet))
    return found | dict(warnings=[f"{runs.path}: {doubt}" for doubt in sense.doubts(runs)])


def predict(law: Law | str, runs: object = None, *, asked: searches.Model | None = None, **model: object) -> Answer:
    """The loss of each model of a table, or of one: n_active=1e9, n_tokens=2e10, n_experts=8. Raises UserError where
    the law reads a column that is missing.

    columns: {name: list}, what the command adds to a table, and `table`, the one with them; warnings; text: the loss of
    one model and its intervals, or how the measured losses of a table lie against those predicted; not_compared: why
    they are not."""
    law = load(law)
    table = (asked or searches.Model.of("predict", model)).table(law) if runs is None else read(runs)
    found: dict[str, Any] = dict(text="", not_compared="") | summary.predict(law, table)
    if runs is None:
        if outside := found["columns"]["outside_fitted_range"][0]:
            found["warnings"].append(f"outside the fitted range: {outside}")
        found["text"] = summary.in_lines(law, found["columns"])
    elif "loss" in table:
        try:
            found["text"] = summary.against_measured(law, table, found["columns"])
        except UserError as e:  # the predictions stand all the same
            found["not_compared"] = e.sentence
    fields = dict(law=law.name, table=summary.extended(table, found["columns"])) | found
    return Answer("prediction", lambda fields: fields["text"], fields)


def plan(law: Law | str, *, asked: plans.Plan | None = None, **limits: object) -> Answer:
    """The best model of a law within limits: flops=1e22 or chips="H100:64" and hours=240, memory_gb=80,
    kv_tokens=16384, inference_tokens=1e12, max_tokens=2e10, experts=[1, 8], ... by="time" gives the hours to each model
    at its own modelled speed. Raises UserError where a limit is out of range, or no model is feasible.

    optima: a dictionary for the optimum at each number of experts; best: one of them; buildable: the model to train,
    None where no model of whole blocks is within the limits; warnings. By time, each of them has `speed`, and `clock`
    says what FLOPs would choose. Its text has all that with verbose=True."""
    law, asked = load(law), asked or plans.Plan.of("plan", limits)
    text = plan_answer.verbose if asked.verbose else plan_answer.text
    return Answer(f"plan by {law.name}", text, plans.planned(law, asked))


def next(law: Law | str, runs: object, *, asked: searches.Next | None = None, **options: object) -> Answer:
    """Which runs to train next within flops=1e13, so that the law's plan at target_flops=1e15, or its
    coefficients=["c"] with goal="coefficients", become surer; runs: those that the law was fitted to. Raises UserError
    where it was fitted to others, or no run is worth it.

    trunks: the models to train, each with its budgets in tokens; expected: how sure the goal is with the fitted runs
    alone, with these as well, and with a plain grid's."""
    law, asked = load(law), asked or searches.Next.of("next", options)
    with _float64():
        from fit.next_runs import next_runs

        goal = asked.target_flops, asked.names(law)
        experts = plans.experts_of(law, asked.experts)
        architecture, runs = asked.architecture(law), _runs_of(law, runs)
        found = next_runs.next_runs(law, runs, architecture, experts, asked.flops, *goal)
    return Answer("next", next_text.text, found)


def add(
    law: Law | str,
    run: str | os.PathLike,
    runs: str | os.PathLike,
    *,
    out: str | os.PathLike | None = None,
    mix_corpora: bool = False,
    columns: dict[str, str] | None = None,
) -> Answer:
    """Adds the finished run in a workdir of jmoe.train, or the runs of a table, to the table in the file `runs`, and
    fits the law to all of them again as it was fitted before; a published law is not fitted. Raises UserError where the
    table has the run already, or its text is another, and then writes nothing.

    out: law.json to write the law to. runs: for each run predicted_loss, loss, inside, whether it lies in the interval,
    and refitted_loss; plans: the best model of the run's budget and of ten times that, before and after; warnings."""
    known = load(law)
    path = str(runs)
    table = None
    if os.path.exists(path) or not known.published:
        table = read(path, columns or (known.record.get("settings") or {}).get("columns"))
    rows, there = added.new_ones(added.runs_of(str(run), table), table, str(run))
    if not mix_corpora:
        added.check_text(rows, table, str(run))
    check_writable(path)
    warnings = added.fill_shared(rows, table)
    found = added.judged(known, rows)
    together = added.together(table, rows, path)
    made = []
    if not known.published:
        if table is not None and not added.has_runs_of(known, table):
            warnings.append(f"{path} is not the table that --law={known.name} was fitted to: both changes count below")
        options = added.options(known) | dict(mix_corpora=mix_corpora)
        if out is None:
            options["bootstrap"] = 0
        again = _fitted(together, options)
        for one, new in zip(found, added.judged(again, rows)):
            one["refitted_loss"] = new["predicted_loss"]
        budgets = (added.flops_of(rows), 10 * added.flops_of(rows))
        made = [plan for flops in budgets if (plan := _compared(known, again, flops))]
        if out is not None:
            save(again, out)
    write(together, path)
    fields = dict(law=known.name, table=path, n_runs=len(together), runs=found, known=[row["run"] for row in there])
    fields |= dict(plans=made, warnings=warnings, percentiles=known.percentiles)
    return Answer(
        "add", added.text, fields | dict(next=added.what_next(known, path, None if out is None else str(out)))
    )


def _fitted(runs: Table, options: dict[str, Any]) -> Law:
    return law(runs, **options)


def _compared(before: Law, after: Law, flops: float) -> dict | None:
    """The best of the plans of two laws for a budget; None where one of them cannot plan it."""
    found = {}
    for name, law in (("before", before), ("after", after)):
        try:
            best = plans.solved(law, plans.Plan.of("plan", dict(flops=flops)))["best"]
        except UserError:
            return None
        found[name] = {column: best[column] for column in ("n_experts", "n_active", "n_tokens", "loss")}
    return dict(flops=flops) | found


def compare(laws: Sequence[Law | str] | None = None, *, asked: plans.Budget | None = None, **limits: object) -> Answer:
    """What several laws answer to one budget (the limits of `plan`), each against its own best dense model. Raises
    UserError where no law has a feasible model, or one cannot be planned with.

    laws: the answer of each law; infeasible: laws without one; agreement: how far the answers lie apart."""
    asked = asked or plans.Budget.of("compare", limits)
    laws = [load(law, "laws") for law in laws or comparing.LAWS]
    found = comparing.compare(laws, asked.ratios, asked.of_all(), asked.experts, asked.used, asked.known, asked.timed)
    return Answer("comparison", plan_text.comparison, found)


def speedup(law: Law | str, runs: object, *, seed: int = 0, by: str = "flops") -> Answer:
    """How many times the compute this law's recipe needs for the losses of these runs, with intervals, and whether
    that grows with compute; by="time": how many times the hours on the same chips, for runs with tokens_per_second and
    law_tokens_per_second, that of the recipe at their size. Raises UserError where the law cannot say.

    runs: each with the compute that the law's recipe needs for its loss, and how many times its own that is; answer:
    the sentence; warnings."""
    law = load(law)
    if by not in plans.BY:
        raise UserError(f"--by={by}: expected one of {', '.join(plans.BY)}")
    return Answer("speedup", speeding.text, speeding.speedup(law, _runs_of(law, runs), seed, by))


def surface(runs: object, *, asked: searches.Surface | None = None, **options: object) -> Answer:
    """The loss over total parameters and sparsity at each of the `budgets` of runs, and the best of both, with
    intervals by refits drawn with seed=0. Raises UserError where no budget has enough runs."""
    asked = asked or searches.Surface.of("surface", options)
    return Answer("surface", surfaces.text, dict(budgets=surfaces.of_table(runs, asked.seed)))


def holistic(
    runs: object = None,
    width_runs: object = None,
    rank: object = None,
    refit: object = None,
    *,
    asked: searches.Holistic | None = None,
    **options: object,
) -> Answer:
    """The complete architecture of a mixture for flops=1e21, by the published laws or those fitted to runs of several
    M/N_a and N/N_a and to width_runs of several widths; whether the architectures of the runs in `rank` keep their rank
    when the width changes; Eq. 2 fitted to the runs in `refit`. Raises UserError where nothing is asked, or no model
    can be built.

    architecture, fit, control, rank, refit: those of them that were asked."""
    asked, result = asked or searches.Holistic.of("holistic", options), {}
    given = dict(flops=asked.flops, runs=runs, width_runs=width_runs, rank=rank, refit=refit)
    if all(value is None for value in given.values()):
        raise UserError("nothing is asked: expected " + " or ".join(f"--{name}" for name in given))
    if (of_rank := asked.given("group", "m_over_active", "total_over_active")) and rank is None:
        raise UserError(f"--{of_rank[0]} needs --rank")
    of_ratios, of_widths = (None if one is None else holistic_runs.read(one) for one in (runs, width_runs))
    if of_ratios or of_widths:
        result["fit"] = holistic_runs.fit(of_ratios, of_widths)
    if of_ratios:
        result["control"] = holistic_runs.control(of_ratios)
    if rank is not None:
        result["rank"] = asked.ranked(read(rank))
    if refit is not None:
        result["refit"] = searches.refit(holistic_runs.read(refit))
    if asked.flops is not None:
        fitted = result["fit"]["laws"] if "fit" in result else None
        result["architecture"] = holistic_laws.architecture(asked.flops, fitted)
    return Answer("holistic", holistic_text.text, result)


def page(
    laws: Law | str | Sequence[Law | str] = DEFAULT_LAW, runs: object = None, out: str | os.PathLike = "planner.html"
) -> str:
    """Writes one HTML page that plans in the browser by these laws and the published ones; runs: of the first law,
    drawn over its curves. Returns the path. Raises UserError for a law whose formula the page does not know."""
    from fit.paper import figures
    from fit.planner import page as planner

    laws = [load(law) for law in ([laws] if isinstance(laws, str) or not isinstance(laws, Sequence) else laws)]
    measured = figures.measured(laws[0], runs)
    check_writable(str(out))
    write_text(str(out), planner.text(planner.of(laws, measured)))
    return str(out)


def _runs_of(law: Law, runs: object) -> Table:
    """Runs of the law, by the names and units of columns that its fit was given."""
    settings = law.record.get("settings") or {}
    return read(runs, settings.get("columns"), settings.get("units"))


@contextlib.contextmanager
def _float64() -> Generator[None]:
    """jax in float64, on the processor where jax has it: an accelerator would only slow such small problems. Raises
    UserError where jax finds no device."""
    import jax

    try:
        device = jax.devices("cpu" if "cpu" in os.environ.get("JAX_PLATFORMS", "cpu") else None)[0]
    except (RuntimeError, AssertionError) as e:  # the latter, with no message, if the plugin is missing
        raise UserError(
            f"JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS')}: jax finds no such device; install the extra [cuda] or "
            "[tpu], or leave JAX_PLATFORMS out: fit needs no accelerator"
        ) from e
    with jax.enable_x64(True), jax.default_device(device):
        yield
