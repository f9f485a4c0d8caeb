"""Options of `fit report`: a plan's options, and the laws of `fit compare`."""

import dataclasses
import functools
import json
import pathlib
import shlex
from typing import Any

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.model.architecture import PAPER
from fit.options import Options, flag_of, or_path, switch, unchecked, words
from fit.planning.inputs.options import BudgetOptions, PlanOptions
from fit.planning.several_laws.comparison import LAWS
from fit.results import JSON_VERSION

FLAGS = {flag_of(field.name): field.name for field in dataclasses.fields(PlanOptions)}


@dataclasses.dataclass(kw_only=True)
class ReportOptions(Options):
    """The options of `fit report` beside the law, its runs and the page."""

    plan: str | dict | None = or_path(
        unchecked(
            "Options of fit plan, such as '--flops=1e22 --memory_gb=80', or a plan that fit plan --json wrote: the "
            "page opens with that plan and with what other laws say of its budget."
        )
    )
    laws: tuple[str, ...] = words(
        "Laws to compare with --law in --plan's budget: names of published laws, or law.json files.", LAWS
    )
    verbose: bool = switch("With --plan: also its tables, costs and all warnings, as fit plan prints them.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.limits is None and self.changed("laws", "verbose"):
            raise UserError(f"--{self.changed('laws', 'verbose')[0]} needs --plan, such as --plan='--flops=1e22'")

    @functools.cached_property
    def limits(self) -> PlanOptions | None:
        """The plan's options; None for a report on the law alone."""
        return None if self.plan is None else plan_options(self.plan)


def plan_options(plan: str | dict) -> PlanOptions:
    """The options of a plan: a dictionary of them, the flags of `fit plan`, or the path of a plan's JSON.

    Raises:
      UserError: A flag is unknown or its value cannot be used, or the file has no plan.
    """
    if isinstance(plan, dict):
        return PlanOptions(**_known(plan.get("options", plan)))
    text = str(plan).strip()
    if text.startswith("-"):
        return PlanOptions(**_known(_of_flags(text)))
    try:
        saved = json.loads(pathlib.Path(text).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--plan={text}: expected flags of fit plan, or a file; {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"--plan={text}: expected what fit plan --json prints") from error
    return PlanOptions(**_known(_of_saved(text, saved)))


def _of_saved(path: str, saved: Any) -> Json:
    """The options of a plan that `fit plan --json` wrote. They are the flags that were given, in every version.

    Raises:
      UserError: It is no plan, a newer fit wrote it, or one so old that it does not state its options.
    """
    if not isinstance(saved, dict) or "optima" not in saved:
        raise UserError(f"--plan={path}: expected what fit plan --json prints")
    version = saved.get("version", 0)
    if version not in range(JSON_VERSION + 1):
        raise UserError(f"--plan={path}: version {version}, expected at most {JSON_VERSION}: a newer fit wrote it")
    if not isinstance(saved.get("options"), dict):
        raise UserError(
            f"--plan={path}: an earlier version of fit wrote this plan, without its options: make it again by fit plan "
            "--json, or give its flags, such as --plan='--flops=1e22'"
        )
    return saved["options"]


def _of_flags(text: str) -> dict[str, Any]:
    """{flag: value} of a command line; the values of a flag that is given several times are joined by commas.

    Raises:
      UserError: A quotation has no end, or a word is no flag.
    """
    try:
        words_of_text = shlex.split(text)
    except ValueError as e:
        raise UserError(f"--plan: found {text!r}, which has a quotation mark or a backslash too many") from e
    values: dict[str, Any] = {}
    for word in words_of_text:
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            raise UserError(f"--plan: found {word!r}, expected flags such as --flops=1e22")
        if not equals:
            values[name] = True
        elif name in values:
            values[name] = f"{values[name]},{value}"
        else:
            values[name] = value
    return values


def _known(values: Json) -> Json:
    """The values by the names of fields. Raises UserError for one that no plan has."""
    for name in values:
        if name not in FLAGS:
            raise UserError(f"--plan: found {name!r}, expected flags of fit plan: {', '.join(sorted(FLAGS))}")
    return {FLAGS[name]: value for name, value in values.items()}


def budget_options(plan: PlanOptions, law: Law, flops: float | None = None) -> BudgetOptions:
    """The options of `fit compare` among a plan's. Models have the law's own vocabulary and width per block, where
    these are not the paper's.

    Args:
      plan: The plan's options.
      law: The law that plans.
      flops: The budget in place of a target loss.
    """
    values = {field.name: getattr(plan, field.name) for field in dataclasses.fields(BudgetOptions)}
    if flops is not None:
        values["flops"] = flops
    values["shape"] = dataclasses.asdict(plan.shape) | shape_of_law(plan, law)
    return BudgetOptions(**values)


def shape_of_law(plan: PlanOptions, law: Law) -> dict[str, int]:
    """{field of --shape: value} of the law's models, where that is not the paper's and no model is given."""
    if plan.like is not None:
        return {}
    architecture = plan.architecture(law)
    shape = dict(vocab_size=architecture.vocab_size, width_per_block=architecture.width_per_block)
    papers = dict(vocab_size=PAPER.vocab_size, width_per_block=PAPER.width_per_block)
    return {} if shape == papers else shape
