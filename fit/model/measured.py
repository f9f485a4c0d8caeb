"""Measured training runs: those that others published, and your own.

measured.csv holds what others published, a row per run, each with its source and the place in it.
"""

import csv
import dataclasses
import math
import os
import pathlib
from collections.abc import Callable

from fit.errors import UserError
from fit.messages.units import amount
from fit.model.architecture import training_flops
from fit.model.chips import CHIPS, Chip
from fit.model.layout import REMATS, Layout
from fit.model.shape import ModelShape
from fit.model.step_cost import IMBALANCE

MEASURED = pathlib.Path(__file__).parent / "measured.csv"
HEAD_DIM = 64  # units of a head, which measured.csv does not tell
MICROBATCH_TOKENS = 8192  # tokens a chip works on at once, where a source does not say
OWN_COLUMNS = ("d_model", "n_experts", "tokens_per_second")
OWN_SETUP = ("n_chips", "batch_tokens", "seq_len", "microbatch_tokens", "expert", "model")  # that a row may give, whole


@dataclasses.dataclass(frozen=True)
class MeasuredRun:
    """A measured run.

    Attributes:
      source: who published it.
      kind: a key of CHIPS.
      shape, layout: the model and how it was trained.
      tokens_per_second: per chip.
      row: the row of the table.
    """

    source: str
    kind: str
    shape: ModelShape
    layout: Layout
    tokens_per_second: float
    row: dict[str, str]

    @property
    def chip(self) -> Chip:
        """Its chips."""
        return CHIPS[self.kind]

    @property
    def software(self) -> str:
        """The software that trained it: its first word in the row, and "on GPUs" or "on TPUs".

        Sources of one software share its speed. On GPUs and on TPUs it has other kernels and another compiler.
        """
        name = (self.row.get("software") or self.source).partition(" ")[0]
        return f"{name} on {'GPUs' if self.chip.gathers_between else 'TPUs'}"

    @property
    def is_mixture(self) -> bool:
        """Whether it has more than one expert."""
        return bool(self.shape.n_experts > 1)

    @property
    def n_chips(self) -> float:
        """Number of its chips."""
        return float(self.layout.n_devices / self.chip.devices)

    @property
    def seconds(self) -> float:
        """Seconds of a step."""
        return float(self.layout.batch_tokens / self.n_chips / self.tokens_per_second)


def read(path: str | os.PathLike = MEASURED) -> list[MeasuredRun]:
    """Reads a table with the columns of measured.csv.

    Raises:
      UserError: where a row is invalid; it names the row and the column.
    """
    with open(path, newline="", encoding="utf-8") as file:
        return [_run(row, f"{path}: row {n}") for n, row in enumerate(csv.DictReader(file), 2)]


def _run(row: dict[str, str], where: str) -> MeasuredRun:
    """The run of a row of measured.csv. `where` is its name in errors."""
    _check_chip(row["chip"], where)

    def number(name: str, default: float = 0.0) -> float:
        """A field as a number."""
        try:
            return float(row.get(name) or default)
        except ValueError:
            raise UserError(f'{where}: {name} is "{row[name]}", expected a number') from None

    chip = CHIPS[row["chip"]]
    shape = _shape(number)
    n_chips = number("n_chips")
    model = number("model", 1)
    pipeline = number("pipeline", 1)
    expert = number("expert", 1)
    at_once = number("microbatch_rows") * number("sequence") or MICROBATCH_TOKENS  # of a chip
    batch_tokens = number("batch_tokens") or at_once * n_chips
    # a row of a TPU says what each chip of the model axis has of the batch, one of a GPU what they all have
    rows_at_once = n_chips / pipeline / (model if chip.gathers_between else 1)
    is_imbalanced = shape.n_experts > 1 and row["balanced"] != "forced" and expert > 1
    layout = Layout(
        batch_tokens=batch_tokens,
        sequence=number("sequence"),
        data=max(1.0, number("data", 1)),
        expert=expert,
        model=model,
        pipeline=pipeline,
        microbatch_tokens=at_once * rows_at_once,
        remat=row["remat"] or "dots",
        buffer=1.0 if row["routing"] == "dropless" else 0.0,
        imbalance=IMBALANCE if is_imbalanced else 1.0,
        domain=number("domain"),
    )
    speed = number("tokens_per_second_per_chip")
    if not speed and number("step_seconds"):
        speed = batch_tokens / number("step_seconds") / n_chips
    if not speed:
        # MaxText and others publish the share of the peak alone, by FLOPs that the row says how to count.
        speed = number("mfu_percent") / 100 * chip.flops / number("source_flops_per_token")
    return MeasuredRun(row["source"], row["chip"], shape, layout, speed, row)


def _shape(number: Callable[..., float]) -> ModelShape:
    """The model of a row of measured.csv, whose fields `number` reads. A row has units, not heads."""
    d_model = number("d_model")
    attention_weights = number("attention_weights")
    query_units = number("attention_width")
    key_units = attention_weights / (2 * d_model) - query_units
    is_latent = key_units <= 0  # narrow projections, from which as many keys as queries are made
    return ModelShape(
        d_model=d_model,
        n_blocks=number("n_blocks"),
        n_heads=query_units / HEAD_DIM,
        n_kv_heads=(query_units if is_latent else key_units) / HEAD_DIM,
        head_dim=HEAD_DIM,
        d_ff=number("d_ff"),
        vocab_size=number("vocab_size"),
        n_experts=number("n_experts", 1),
        d_expert=number("d_expert"),
        top_k=number("n_experts_per_token", 1),
        n_shared_experts=number("n_shared_experts"),
        n_dense_blocks=number("n_dense_blocks"),
        matrices=number("matrices", 3),
        latent_attention=attention_weights if is_latent else 0,
    )


def _check_chip(kind: str, where: str) -> None:
    """Raises UserError for an unknown kind of chip. `where` is the row that names it."""
    if kind not in CHIPS:
        raise UserError(f'{where}: chip is "{kind}"; kinds: {", ".join(CHIPS)}')


def read_own(
    path: str | os.PathLike, shape_of: Callable[[dict[str, str]], ModelShape], kind: str, n_chips: int, sequence: int
) -> list[MeasuredRun]:
    """Reads your own measurements: a table with n_experts, d_model and tokens_per_second of all chips together.

    A row may have the columns chip, remat and OWN_SETUP. batch_tokens and microbatch_tokens are tokens of all chips;
    expert and model are sizes of the mesh's axes, the rest is data.

    Args:
      path: the table; further columns are handed to shape_of.
      shape_of: the model of a row.
      kind, n_chips, sequence: the chips and the tokens in a row, where the table does not say.

    Raises:
      UserError: where the file, a column or a number is missing, or a speed is above the peak of its chips.
    """
    runs = []
    for n, row in enumerate(_own_rows(path), 2):
        where = f"--speeds={path}: row {n}"
        speed = _positive(row, "tokens_per_second", where)
        for name in ("d_model", "n_experts"):
            _positive(row, name, where)
            whole(row, name, where)
        own_kind = row.get("chip") or kind
        _check_chip(own_kind, where)
        layout = _own_layout(row, CHIPS[own_kind], n_chips, sequence, where)
        run = MeasuredRun(str(path), own_kind, shape_of(row), layout, speed, row)
        peak = run.n_chips * run.chip.flops / training_flops(float(run.shape.n_active - run.shape.looked_up), 1)
        if speed > peak:
            raise UserError(
                f"{where}: tokens_per_second is {speed:g}, expected at most {peak:.3g}, which {run.n_chips:g} x "
                f"{own_kind} reach at their peak with {amount(float(run.shape.n_active))} active parameters"
            )
        runs.append(dataclasses.replace(run, tokens_per_second=speed / run.n_chips))
    return runs


def _own_rows(path: str | os.PathLike) -> list[dict[str, str]]:
    """The rows of a table of your own speeds. Raises UserError where it has none, or lacks a column."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise UserError(f"--speeds={path}: {error.strerror or error}") from error
    missing = [name for name in OWN_COLUMNS if rows and name not in rows[0]]
    if not rows or missing:
        problem = f"has no column {missing[0]}" if missing else "has no rows"
        raise UserError(f"--speeds={path}: {problem}; expected the columns {', '.join(OWN_COLUMNS)}")
    return rows


def _own_layout(row: dict[str, str], chip: Chip, n_chips: int, sequence: int, where: str) -> Layout:
    """How the run of a row was trained. Raises UserError where its mesh does not divide its chips."""
    numbers = {name: whole(row, name, where) for name in OWN_SETUP if row.get(name)}
    n_chips = numbers.get("n_chips") or n_chips
    n_devices = n_chips * chip.devices
    expert = numbers.get("expert") or 1
    model = numbers.get("model") or 1
    if n_devices % (expert * model):
        raise UserError(f"{where}: expert {expert} times model {model} does not divide its {n_chips} chips")
    remat = row.get("remat") or "full"
    if remat not in REMATS:
        raise UserError(f'{where}: remat is "{remat}", expected one of {", ".join(REMATS)}')
    at_once = MICROBATCH_TOKENS * n_chips
    batch_tokens = numbers.get("batch_tokens") or at_once
    return Layout(
        batch_tokens=batch_tokens,
        sequence=numbers.get("seq_len") or sequence,
        data=n_devices // (expert * model),
        expert=expert,
        model=model,
        microbatch_tokens=numbers.get("microbatch_tokens") or min(at_once, batch_tokens),
        remat=remat,
    )


def whole(row: dict[str, str], name: str, where: str) -> int:
    """A field of a row as a whole number from 0 up. Raises UserError where it is none."""
    try:
        value = float(row[name])
    except ValueError:
        value = math.nan
    if not (value >= 0 and value.is_integer()):
        raise UserError(f'{where}: {name} is "{row[name]}", expected a whole number')
    return int(value)


def _positive(row: dict[str, str], name: str, where: str) -> float:
    """A field of a row as a positive number. Raises UserError where it is none."""
    try:
        value = float(row[name])
    except (TypeError, ValueError):
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise UserError(f'{where}: {name} is "{row[name]}", expected a positive number')
    return value
