"""The planner page, and what it is given: laws, runs, chips, and the sentences and constants of a plan."""

import dataclasses
import itertools
import json
import pathlib
import re
from collections.abc import Sequence
from types import ModuleType

import numpy as np

from fit.aliases import Array, Json
from fit.errors import UserError
from fit.fitted_law import extrapolation
from fit.fitted_law.law import Law
from fit.fitted_law.law_files import OURS, load
from fit.form import Form
from fit.laws import FORMS, PRESETS
from fit.messages import sentences, units
from fit.messages.catalogue import CATALOGUE
from fit.model import reference_model, serving
from fit.model.architecture import PAPER
from fit.model.chips import CHIPS
from fit.planning.answer import plan_answer
from fit.planning.context import plan_findings, reasons_to_doubt
from fit.planning.context.reference_model import counts_of
from fit.planning.inputs import problem
from fit.planning.inputs.constraints import Constraints
from fit.planning.inputs.fields_of_flags import FIELDS
from fit.planning.inputs.training_chips import MFU, Chips
from fit.planning.search import best_models
from fit.planning.several_laws import agreement, architectures, comparison
from fit.planning.uncertainty import odds
from fit.render.figures import Measured
from fit.render.planner import formulas, page_speeds
from fit.table.files import check_writable, write_text
from fit.table.runs import Runs

SIZES = dict(vocab_size=PAPER.vocab_size, width_per_block=PAPER.width_per_block)  # of any models
CHIP = "H100"
MOST_CHIPS = 64  # for a published law
DEFAULTS = dict(  # of fields that no law decides, as text
    hours="",
    mfu=str(MFU),
    dollars_per_hour="2",
    memory_gb="",
    devices="1",
    context="0",
    sequences="1",
    serve_tokens_per_second="",
    bytes_per_parameter="2",
    bytes_per_kv_element="2",
    inference_tokens="0",
    max_tokens="",
)
ASSUMED = ("bytes_per_parameter", "bytes_per_kv_element", "kv_tokens", "inference_tokens")  # without a flag
EXAMPLE = dict(flops="1e22", memory_gb="80", context="16384")  # of the paper's laws
MOST_RUNS = 1200  # on the page, spread evenly over the table
SCRIPTS = (
    "elements data numbers counts serving law messages solve cost odds findings plan compare form options speeds chart "
    "pictures command answers comparison app"
).split()
# Imports, exports, comments and indentation: the scripts become one, with one scope for all names.
NOT_CARRIED = re.compile(r"^(import [^;]*;\n|export | *//.*\n|/\*\*[\s\S]*?\*/\n| +)", re.MULTILINE)
FOLDER = pathlib.Path(__file__).parent


def write(laws: Sequence[Law], measured: Measured, path: str, chips: tuple[str, int] | None = None) -> str:
    """Writes the page of some laws, and returns its path.

    Args:
      laws: The page shows the first of them at first.
      measured: Runs of the first law, and boolean [n_runs]: those kept out of its fit.
      path: The file to write.
      chips: The kind and the most of the chips, as `page_data` takes them.

    Raises:
      UserError: A law has no optimum of size and tokens, or the file cannot be written.
    """
    check_writable(path)
    write_text(path, text(page_data(laws, measured, chips)))
    return path


def text(data: Json) -> str:
    """The page as text. `data`: what `page_data` returns."""
    forms = [FORMS[name] for name in data["forms"]]
    scripts = [NOT_CARRIED.sub("", _read(f"{name}.js")) for name in SCRIPTS]
    parts = dict(
        STYLE=_read("page.css"),
        # "<" within a string could end the script element, so JSON's escape stands for it
        DATA=json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        SCRIPT="\n".join([formulas.script(forms), *scripts]),
    )

    def part(placeholder: re.Match[str]) -> str:
        """The text in place of {{NAME}}."""
        return parts[placeholder[1]]

    return re.sub(r"\{\{(\w+)\}\}", part, _read("page.html"))


def _read(name: str) -> str:
    """The text of a file beside this one."""
    return (FOLDER / name).read_text(encoding="utf-8")


def page_data(laws: Sequence[Law], measured: Measured, chips: tuple[str, int] | None = None) -> Json:
    """Everything that the page computes with, ready for JSON.

    Args:
      laws: The page shows the first of them at first. It adds the published laws that have optima, and ours.
      measured: Runs of the first law, and boolean [n_runs]: those kept out of its fit.
      chips: The kind and the most of the chips for whose hours the page plans, by the first law, at modelled speeds.
        None stands for those of `default_chips`.

    Raises:
      UserError: A law has no optimum of size and tokens.
    """
    names = {law.name for law in laws}
    built_in = [name for name, form in PRESETS.items() if "n_tokens" in form.columns] + list(OURS)
    added = [law for law in map(load, built_in) if law.name not in names and formulas.has_formula(law.form)]
    all_laws = [*laws, *added]
    runs = None
    if measured is not None:
        runs = _runs(*measured)
    kind, count = chips or default_chips(laws[0])
    rows = [_law(law) for law in all_laws]
    rows[0]["defaults"] |= dict(chip=kind, chips=str(count))
    return dict(
        laws=rows,
        speeds=page_speeds.speeds_of(laws[0], kind, count),
        runs=runs,
        sentences={name: template for name, template in vars(sentences).items() if name.isupper()},
        catalogue={code: dataclasses.asdict(kind) for code, kind in CATALOGUE.items()},
        fields={name: f"{flag}={field}" for name, (flag, field) in FIELDS.items()},
        chips={kind: _chip(kind) for kind in CHIPS},
        serving=_constants(serving, "BATCHES", "LABEL", "BANDWIDTH_SHARE"),
        defaults=DEFAULTS,
        assumed=_constants(Constraints, *ASSUMED) | _constants(Chips, "devices", "serve_batch"),
        forms={name: _form(FORMS[name]) for name in sorted({law.form.name for law in all_laws})},
        compare=_constants(comparison, "LAWS", "ABOUT", "AGREE") | _constants(agreement, "FURTHEST"),
        published={name: _reference_model(name) for name in reference_model.PUBLISHED},
        largest=units.LARGEST,
        odds=_constants(odds, "CLOSE", "CLOSE_BUDGET", "APART", "COLUMNS", "MOST_LOG_SHARE")
        | _constants(best_models, "GAIN"),
        doubt=_constants(reasons_to_doubt, "MOSTLY") | _constants(problem, "BAND"),
        paper_shape=dataclasses.asdict(PAPER),
    )


def default_chips(law: Law) -> tuple[str, int]:
    """(kind, number) of the chips that a page assumes: one for the user's own small models."""
    return CHIP, MOST_CHIPS if law.published else 1


def _chip(kind: str) -> Json:
    """The peak and the memory of one chip, and what it reaches when it serves."""
    chip = serving.ServingChips(kind, 1)
    return dict(
        flops=CHIPS[kind].flops,
        memory=CHIPS[kind].memory,
        decoding_bandwidth=chip.bandwidth,
        products_flops=chip.flops,
        products_share=serving.products_share(kind),
    )


def _constants(place: ModuleType | type, *names: str) -> Json:
    """{name in lower case: value} of the constants of a module, or of what a dataclass has without a value."""
    return {name.lower(): getattr(place, name) for name in names}


def _reference_model(name: str) -> Json:
    """A published model: what it counts, and the shape of models built like it."""
    reference = reference_model.read(name)
    shape = dataclasses.asdict(reference.architecture())
    return dict(
        counts=counts_of(reference).to_dict(), shape=shape, defaults=_as_text({size: shape[size] for size in SIZES})
    )


def _as_text(sizes: dict[str, int | str]) -> dict[str, str]:
    """Sizes as texts of the form; "" for a sentence that asks for one."""
    return {name: "" if isinstance(size, str) else str(size) for name, size in sizes.items()}


_LAW = (
    *("name", "counts_embedding", "chooses_experts", "has_fixed_n_experts", "published", "experts"),
    *("only_n_experts", "holds_for_mixtures", "holds_for_dense", "no_draws"),
)


def _law(law: Law) -> Json:
    """A law as the page knows it."""
    law.check_plannable()
    models_of_runs = law.models
    shape = {name: _value_or_refusal(law, name) for name in SIZES}
    architecture = None
    if models_of_runs.architecture:
        architecture = dataclasses.asdict(models_of_runs.architecture.architecture(1, 1))
    return dict(
        form=law.form.name,
        coefficients={name: law.coefficients[name] for name in law.form.names},
        **{name: getattr(law, name) for name in _LAW},
        defaults=_defaults(law) | _as_text(shape),
        example=EXAMPLE if law.form.name == "joint" and law.published else {},
        own=architecture,
        dense=law.dense if law.published else None,
        beyond_runs=law.beyond_runs.to_dict() if law.beyond_runs else None,
        findings=_findings(law),
        shapes=[
            dict(granularity=each.granularity, shared=each.shared)
            for each in itertools.chain(*architectures.to_try(law, SIZES, None))
        ],
        origin=_origin(law),
        width_of_runs=models_of_runs.width_per_block,
        shape=shape,
        own_vocabulary=law.counting.vocab_size,
        counted_as_they_are=law.counting.as_they_are,
        ranges=_ranges(law),
        shape_ranges=extrapolation.shape_ranges(law),
        records_shapes=bool(law.runs.shape_ranges),
        bootstrap=law.bootstrap.to_dict() if law.bootstrap else None,
    )


def _ranges(law: Law) -> dict[str, tuple[float, float]]:
    """{column: (low, high)} of the columns in which a model may lie outside the law's runs, but for its shape."""
    names = (*law.form.columns, *law.fixed, "training_flops")
    ranges = {name: law.ranges[name] for name in names if name in law.ranges}
    if law.models.unique_tokens:
        ranges["unique_tokens"] = (0, law.models.unique_tokens)
    return ranges


def _defaults(law: Law) -> Json:
    """{field of the form: text} of the questions that the page asks at first: models of three times the FLOPs of the
    law's largest run, on `default_chips`."""
    kind, count = default_chips(law)
    flops = 3 * law.ranges.get("training_flops", (0, 1e21))[1]
    return dict(
        experts=",".join(map(str, law.experts)), flops=f"{flops:.0e}".replace("e+", "e"), chip=kind, chips=str(count)
    )


def _findings(law: Law) -> Json:
    """{name of a published model to start from, "" for none: findings on what the law does not know of its kind}."""
    like_the_runs = bool(law.models.architecture)
    sizes = {name: getattr(law.models, name) or size for name, size in SIZES.items()}
    architectures = {"": law.shaped(**sizes)}
    for name in reference_model.PUBLISHED:
        architectures[name] = reference_model.read(name).architecture(counts_routed_experts=like_the_runs)
    by_model = {}
    for name, architecture in architectures.items():
        findings = plan_findings.of_law(law, architecture)
        by_model[name] = [each.to_dict() for each in findings if each.code not in plan_answer.IN_OTHER_WORDS]
    return by_model


def _origin(law: Law) -> str:
    """Sentences on where a published law is from, and its draws; "" for any other."""
    if not law.published:
        return ""
    draws = f"No draws: {law.no_draws}"
    if law.source_of_draws:
        draws = f"Its draws are {law.source_of_draws}"
    return f"{law.source}. {law.note}. {draws}."


def _form(form: Form) -> Json:
    """The rules of its laws: how coefficients make the entries that the formula reads, and of which columns."""
    return dict(
        columns=form.columns,
        entries=[[name, name in form.positive, c.above] for name, c in form.coefficients.items()],
        closed=bool(form.chinchilla_coefficients_at),
    )


def _value_or_refusal(law: Law, name: str) -> int | str:
    """The vocab_size or the width_per_block of the law's runs, or the sentence that asks for one where these had
    several."""
    other = "width_per_block" if name == "vocab_size" else "vocab_size"
    try:
        return getattr(law.shaped(**{other: 1}), name)
    except UserError as e:
        return e.sentence


def _runs(runs: Runs, held_out: Array) -> Json:
    """Columns of the runs; at most MOST_RUNS of them."""
    rows = np.unique(np.linspace(0, len(runs) - 1, min(len(runs), MOST_RUNS)).round().astype(int))
    columns = {name: values[rows].tolist() for name, values in runs.columns.items()}
    return columns | dict(loss=runs.loss[rows].tolist(), held_out=held_out[rows].tolist())
