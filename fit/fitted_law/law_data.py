"""What is known of a law: the fields of law.json, and what follows from them."""

import dataclasses
import functools
from typing import Any

import numpy as np

from fit.aliases import Array, Json
from fit.errors import UserError
from fit.fitted_law.bounds import Coefficient
from fit.fitted_law.models import Models, first_values
from fit.fitted_law.parts import (
    Bootstrap,
    Choice,
    FittedRuns,
    HoldOut,
    ProfileInterval,
    PublishedTable,
    Scatter,
    SeparateErrors,
    SeparateLaw,
    Starts,
)
from fit.fitted_law.settings import DEFAULTS, Settings
from fit.fitted_law.tuning import Tuning
from fit.form import Form
from fit.laws import PRESETS
from fit.messages import finding, sentences
from fit.messages.finding import Finding
from fit.messages.units import amount, flops, say
from fit.model.architecture import EXPERTS, OF_EXPERTS, PAPER, Architecture
from fit.results import NOT_IN_JSON, to_plain
from fit.table.runs import Errors
from fit.table.table import plain

VERSION = 4  # of law.json
WITHOUT_EMBEDDING = "without embedding"  # the entry "counts" there of a law that counts without embedding and head


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LawData:
    """What is known of a law. A field is None, or empty, where it is not known.

    Attributes:
      name: Of the preset, or the file.
      form: The formula.
      coefficients: By name.
      objective: Of the best fit.
      settings: How the law was fitted.
      runs: What it was fitted to.
      models: The models of these runs.
      fitted, held_out: Errors on the fitted runs, and on those kept out.
      starts: The starts of the fit.
      versions: {package: version} of what fitted it.
      rolling: Rolling hold-outs by compute.
      separate: {number of experts: the law of its runs alone}; separate_fitted and separate_held_out are their errors.
      sample: How many of the fitted runs its uncertainty is from, where it is not from all.
      noise: How runs scatter around the law.
      profile: {coefficient: its profile interval}.
      bootstrap: Fits to resampled runs.
      choice: Why it has its form, where several could be fitted.
      tuning: The best rate and batch of a model; None for a law that was fitted without them.
      findings: What to know of the runs and the fit; `warnings` are these in words.
      beyond_runs: A finding on known errors of this law beyond its runs; `warning` is this in words.
      source, note: Where a published law is from, and what to know of it.
      counts_embedding: Whether n_active and n_total are with embedding and head.
      dense: The preset that the dense models of the same paper follow.
      fixed: Columns that all runs of a published law share, so that its formula does not read them.
      no_draws: Why a published law has no draws, in words.
      table_2: The paper's table of the best numbers of experts.

    What it holds for follows from the columns that its form reads and from the models that it was fitted to:

      its models                        reads_n_experts  only_n_experts  holds_for_mixtures  holds_for_dense
      dense ones                        no               1               no                  yes
      mixtures of 8 experts             no               8               yes                 no
      of several numbers of experts     yes              None            yes                 yes
      a preset's of 64, fixed in it     yes              None            yes                 yes

    The last has_fixed_n_experts too. A form without experts, fitted to several numbers of them, is as of dense models,
    or as of mixtures where none was dense, but its only_n_experts is None.
    """

    name: str = dataclasses.field(metadata=NOT_IN_JSON)
    form: Form = dataclasses.field(metadata=NOT_IN_JSON)
    coefficients: dict[str, Coefficient]
    _: dataclasses.KW_ONLY
    objective: float | None = None
    settings: Settings = DEFAULTS
    runs: FittedRuns = FittedRuns()
    models: Models = Models()
    fitted: Errors | None = None
    held_out: Errors | None = None
    starts: Starts | None = None
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    rolling: tuple[HoldOut, ...] = ()
    separate: dict[str, SeparateLaw] = dataclasses.field(default_factory=dict)
    separate_fitted: SeparateErrors | None = None
    separate_held_out: SeparateErrors | None = None
    sample: int | None = None
    noise: Scatter | None = None
    profile: dict[str, ProfileInterval] = dataclasses.field(default_factory=dict)
    bootstrap: Bootstrap | None = None
    choice: Choice | None = None
    tuning: Tuning | None = dataclasses.field(default=None, metadata={"key": "rates"})
    findings: tuple[Finding, ...] = ()
    beyond_runs: Finding | None = None
    source: str = ""
    note: str = ""
    counts_embedding: bool = dataclasses.field(default=True, metadata=NOT_IN_JSON)  # "counts" there
    dense: str | None = None
    fixed: tuple[str, ...] = ()
    no_draws: str = ""
    table_2: PublishedTable | None = None

    def to_dict(self) -> Json:
        """The law as law.json holds it: the fields that are known."""
        values: Json = dict(version=VERSION, form=self.form.name)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.metadata.get("json", True) and value not in (None, "", (), {}):
                values[field.metadata.get("key", field.name)] = plain(to_plain(value))
        if not self.counts_embedding:
            values["counts"] = WITHOUT_EMBEDDING
        return values

    @property
    def warnings(self) -> list[str]:
        """The findings in words."""
        return finding.in_words(self.findings)

    @property
    def warning(self) -> str:
        """The finding on known errors beyond its runs in words; "" without one."""
        return "" if self.beyond_runs is None else str(self.beyond_runs)

    @property
    def published(self) -> bool:
        """Whether it is a paper's law, not one that a fit wrote."""
        return self.name in PRESETS

    @functools.cached_property
    def draws(self) -> dict[str, Array] | None:
        """The bootstrap's coefficients by name, each [n_draws]; None without a bootstrap."""
        if self.bootstrap is None:
            return None
        return dict(zip(self.form.names, np.array(self.bootstrap.draws).T, strict=True))

    @property
    def n_draws(self) -> int:
        """How many draws the bootstrap has; 0 without one."""
        return 0 if self.bootstrap is None else len(self.bootstrap.draws)

    @property
    def percentiles(self) -> list[float]:
        """The ends of the bootstrap's intervals; [] without one."""
        return [] if self.bootstrap is None else list(self.bootstrap.percentiles)

    @property
    def source_of_draws(self) -> str:
        """Where draws of a published law are from, in words; "" for those of a fit."""
        return "" if self.bootstrap is None else self.bootstrap.source or ""

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """{column: (low, high)} of the fitted runs: n_active, n_tokens, n_experts, training_flops, where known."""
        names = dict.fromkeys(("n_active", "n_tokens", "n_experts", *self.form.columns, "training_flops"))
        return {name: self.runs.ranges[name] for name in names if name in self.runs.ranges}

    @property
    def ranges_in_words(self) -> str:
        """The ranges of the fitted runs in words; "" if none is known."""
        ranges = []
        for name, ends in self.ranges.items():
            write = flops if name == "training_flops" else amount
            ranges.append(f"{name} {' to '.join(map(write, ends))}")
        return ", ".join(ranges)

    @property
    def reads_n_experts(self) -> bool:
        """Whether the loss depends on the number of experts."""
        return not set(OF_EXPERTS).isdisjoint(self.form.columns)

    @property
    def reads_active_width(self) -> bool:
        """Whether the loss depends on how many experts a token uses."""
        return not {"sparsity", "top_k"}.isdisjoint(self.form.columns)

    @property
    def has_fixed_n_experts(self) -> bool:
        """Whether all runs of a published law have one number of experts, which its formula does not read."""
        return "n_experts" in self.fixed

    @property
    def chooses_experts(self) -> bool:
        """Whether a plan by the law may choose among numbers of experts."""
        return self.reads_n_experts and not self.has_fixed_n_experts

    @property
    def experts(self) -> tuple[int, ...]:
        """The numbers of experts that a plan compares by default: those fitted, else the paper's; of a law whose
        formula does not read it, the one number that its models have."""
        fitted = self.models.n_experts or ()
        if self.reads_n_experts:
            return fitted or EXPERTS
        return fitted[:1] if fitted and 1 not in fitted else (1,)

    @property
    def only_n_experts(self) -> int | None:
        """The only number of experts for which the law holds; None where it holds for several."""
        holds_for_several = self.reads_n_experts or len(self.models.n_experts or ()) > 1
        return None if holds_for_several else self.experts[0]

    @property
    def holds_for_mixtures(self) -> bool:
        """Whether its models are mixtures, of one number of experts or of several."""
        return self.reads_n_experts or self.experts != (1,)

    @property
    def holds_for_dense(self) -> bool:
        """Whether the law can say what a dense model would reach."""
        return self.reads_n_experts or not self.holds_for_mixtures

    @property
    def only_words(self) -> str:
        """A sentence on why the law predicts no other numbers of experts."""
        if self.holds_for_mixtures:
            return say(sentences.ONE_NUMBER, law=self.name, own=self.experts[0])
        return say(sentences.DENSE_ALONE, law=self.name)

    @property
    def architecture(self) -> Architecture:
        """The Architecture that the law was fitted to; by default the paper's."""
        return self.shaped()

    def shaped(self, vocab_size: int | None = None, width_per_block: int | None = None) -> Architecture:
        """The Architecture of the law's models with another vocabulary or width per block; None takes the law's.

        Raises:
          UserError: where its runs had several, none in a majority.
        """
        shape: dict[str, Any] = dict(vocab_size=vocab_size, width_per_block=width_per_block)
        for name in shape:
            several = self.models.differing.get(name)
            known = getattr(self.models, name)
            if shape[name] is None and known is None and several:
                raise UserError(
                    f"--law={self.name}: its runs have {len(several)} values of {name} "
                    f"({first_values(several)}), none of them in most: say which by --shape={name}:…"
                )
            shape[name] = shape[name] or known or getattr(PAPER, name)
        shape["final_norm"] = self.models.final_norm
        ratios = self.models.architecture
        return ratios.architecture(**shape) if ratios else Architecture(**shape)
