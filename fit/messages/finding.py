"""Findings: what to know before trusting a result, each with a code, and the catalogue of their templates.

Results are sorted and filtered by code and severity, never by wording.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from fit.aliases import Json
from fit.messages.units import say

URGENT = "urgent"  # the run fails, or wastes much of its budget
WARNING = "warning"  # the answer may be off
NOTE = "note"  # what else the numbers say


@dataclasses.dataclass(frozen=True)
class Kind:
    """The findings of one code.

    Attributes:
      template: Of units.say.
      severity: URGENT, WARNING or NOTE.
    """

    template: str
    severity: str = WARNING


CATALOGUE = {
    # the best model of a plan
    "best_outside": Kind("the best is {outside}"),
    "errors_beyond_runs": Kind("{sentence}"),
    "at_edge": Kind(
        "the best number of experts, {n_experts}, is the {which} of those compared: add numbers beyond it to --experts"
    ),
    "not_bounded": Kind(
        "by this law more experts are always better: only --experts limits their number; --memory_gb would limit it too"
    ),
    "tokens_per_parameter": Kind(
        "{what} {ratio:.3g} tokens per parameter, expected 0.1 to 100,000: is a number meant in billions?"
    ),
    "mostly_embedding": Kind(
        "mostly embedding: {share:.1%} of the best model's active parameters are embedding and head of "
        "{vocab_size:,} tokens, which take the FLOPs and add little to what its blocks learn",
        URGENT,
    ),
    # its draws
    "undecided": Kind("the best number of experts is undecided: of {draws} draws it is {wins}"),
    "forms_disagree": Kind(
        "the forms of the law disagree. By the additive form ({additive_draws} of {draws} draws) the best model has "
        "{additive_n_active:amount} active parameters and a loss of {additive_loss:.4f}. By the coupled form it has "
        "{coupled_n_active:amount} and {coupled_loss:.4f}. These are medians; the intervals hold both forms"
    ),
    # what the law does not know
    "not_read": Kind(
        "{asked}: the {form} law has no column for it. The plan assumes the loss of models with {own} at equal "
        "{columns}"
    ),
    "whole_experts": Kind(
        "the {form} law reads {columns}. This plan's experts are as wide as a dense layer ({values}); fit compare "
        "tries narrower ones too"
    ),
    "own_models": Kind("{sentence}"),
    "no_range": Kind("the law does not say what range it was fitted to"),
    "shape_unknown": Kind("the law does not say the {names} of its models: the plan assumes {values}"),
    # the recipe
    "rates_differ": Kind(
        "published laws of the learning rate differ by a factor of {factor:.2g} for this run: {low:.2g} by "
        "{low_law}, {high:.2g} by {high_law}. Try several rates at a smaller size first"
    ),
    "batches_differ": Kind(
        "published laws of the batch differ by a factor of {factor:.2g} for this run: {low:amount} tokens by "
        "{low_law}, {high:amount} by {high_law}"
    ),
    "many_steps": Kind(
        "batches of {tokens:,} tokens make {steps:,} steps, more than {most:,}: a larger batch would be faster"
    ),
    "few_steps": Kind(
        "batches of {tokens:,} tokens make {steps:,} steps, fewer than {fewest:,}: a smaller batch would learn more"
    ),
    # repeated text
    "plateau": Kind(
        "larger models gain next to nothing: this one is the smallest whose loss is within {near:.2%} of the lowest"
    ),
    "repeats_dense": Kind("the law of repeated text was fitted on dense models only"),
    # the chips
    "chips_bind": Kind(
        "training a larger model takes more than {count} x {kind}. Without that limit the best model, E = "
        "{n_experts}{needed}, would have a loss {loss:.4f} lower"
    ),
    "chips_bind_by_time": Kind(
        "{count} x {kind} train no larger model with {n_experts} experts: their memory bounds its size"
    ),
    "sends_longer": Kind(
        "on {count} x {kind} a step sends {share:.2g} times as long as it computes at the assumed MFU, so training "
        "takes longer than planned",
        URGENT,
    ),
    "mesh_uneven": Kind(
        "--mesh={axis}:{size} does not divide the buildable model's {count} {what}: the trainer refuses it",
        URGENT,
    ),
    "step_too_large": Kind(
        "a step of the buildable model on {step_tokens:,} tokens at once takes about {need:.4g} GB, and {count} x "
        "{kind} have {limit:.4g} GB: set config.microbatch_tokens = {microbatch_tokens}",
        URGENT,
    ),
    # tables, and models beyond those of the law
    "outside": Kind("outside the fitted range: {outside}"),
    "outside_with_errors": Kind("outside the fitted range of this law: {sentence}"),
    "table": Kind("{doubt}"),
    "rows_without_loss": Kind("{count} rows without a loss are skipped"),
    "beyond_baseline": Kind(
        "{count} of these losses lie beyond the baseline's runs: the farthest takes {factor:.2f} times the largest "
        "of their costs"
    ),
    "other_table": Kind("{table} is not the table that --law={law} was fitted to: both changes count below"),
    "taken_from_table": Kind("the run leaves out what all runs of the table share; taken for it: {columns}"),
    # runs, and the law fitted to them
    "mixtures_unread": Kind(
        "{mixtures} of the {runs} runs are mixtures (n_experts {n_experts}): the {form} law knows no experts and "
        "fits one loss to all of them; use --form=joint, or the runs of one n_experts"
    ),
    "one_n_experts": Kind("every run has n_experts = {n_experts}: the {form} law holds for such mixtures alone"),
    "lonely_experts": Kind(
        "{file}: {row} alone says what n_experts = {n_experts:g} does: its error is the law's there; train more runs "
        "of it, at other sizes and tokens, or leave it out by --where=n_experts!={n_experts:g}"
    ),
    "transition": Kind(
        "{across} of {runs} runs gain far more than the others from the text before: {listed} nats from {early} to "
        "{late}, where the median of the others gains {median:.3f}. If that is a transition, no smooth law holds on "
        "both sides of it: fit the runs of one side"
    ),
    "far_off": Kind(
        "{file}: {count} of {runs} fitted runs {verb} far off the law, whose median error is {usual:.2%}: {listed}. "
        "Look at them before you use it"
    ),
    "plan_refuses": Kind(
        "this law's loss does not fall with {column} at n_experts = {n_experts} (exponent up to {exponent:.3g}): fit "
        "plan will refuse it there; give more runs, or hold coefficients by --fix"
    ),
    # one law among several
    "law_outside": Kind("outside its data: {outside}"),
    "law_mostly_embedding": Kind("{share:.1%} of its active parameters are embedding and head"),
    "law_at_edge": Kind("{n_experts} experts are at the edge of those compared: one beyond may be better"),
    "law_width": Kind("a token uses {active_width:g} experts' width, of {n_experts}", NOTE),
    "law_not_read": Kind(
        "{flags}: the {form} law has no column for that; {subject} taken to hold for models of equal counts"
    ),
    "law_finest": Kind("experts split in {granularity} are the finest of its data: finer ones may be better"),
    "law_note": Kind("{sentence}", NOTE),
    "law_dense": Kind("its dense models follow {law}", NOTE),
    # several laws together
    "law_not_counted": Kind(
        "{law} does not count: its answer lies more than {furthest} times beyond the compute that it was fitted to",
        NOTE,
    ),
    "laws_prefer": Kind(
        "{for_mixtures} of {count} laws of mixtures prefer a mixture to a dense model, with a loss {least:.1%} to "
        "{most:.1%} below it",
        NOTE,
    ),
    "laws_vote": Kind(
        "Votes of {laws} laws: a mixture {mixture:.0%}; E = {counts}; E varies x {between:.2g} between{within_laws} "
        "laws",
        NOTE,
    ),
    "laws_disagree": Kind("The laws disagree, and this uncertainty is the largest: {what}", NOTE),
    "laws_agree": Kind("The laws agree within a factor of {agree:g}: {what}", NOTE),
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something to know before trusting a result. str() of it is its sentence.

    Attributes:
      code: A key of CATALOGUE.
      severity: URGENT, WARNING or NOTE.
      values: {name: value} that the template is filled in with, plain enough for JSON.
    """

    code: str
    severity: str
    values: Mapping[str, Any]

    def __str__(self) -> str:
        return say(CATALOGUE[self.code].template, **self.values)

    def to_dict(self) -> Json:
        """The finding for JSON, with its sentence."""
        return dict(code=self.code, severity=self.severity, values=dict(self.values), text=str(self))


def finding(code: str, **values: Any) -> Finding:
    """A finding of the catalogue. Raises KeyError for a code that it does not have."""
    return Finding(code, CATALOGUE[code].severity, values)


def sentences(findings: Iterable[Finding]) -> list[str]:
    """The findings in words."""
    return [str(each) for each in findings]
