"""What a law does not read of how models are built, where its own runs were built otherwise."""

from collections.abc import Sequence

from fit.fitted_law.law import Law
from fit.messages.finding import Finding, finding
from fit.model.architecture import Architecture
from fit.planning.inputs.options import ARCHITECTURE_FIELDS

FIELDS = dict(used="active_width") | ARCHITECTURE_FIELDS  # {field of --shape: field of Architecture}
# {field of --shape: columns}: a law that has one of these columns reads the field. No law reads the other fields.
COLUMNS = dict(used=("sparsity", "top_k"), granularity=("granularity", "top_k"), shared_experts=("shared_share",))
OF_DENSE = ("kv_share",)  # makes a difference to dense models, too


def fields_of(law: Law, architecture: Architecture, used: Sequence[float] | None = None) -> dict[str, list[float]]:
    """{field of --shape: values} in which models differ from the law's runs, and that the law has no column for.

    A law of dense models needs no fields of experts.

    Args:
      law: The law.
      architecture: How the models are built.
      used: The widths that a token may use, where a law that reads them would choose among them.
    """
    of_runs = law.shaped(architecture.vocab_size, architecture.width_per_block)
    fields = {}
    for name, attribute in FIELDS.items():
        is_read = not set(COLUMNS.get(name, ())).isdisjoint(law.form.columns)
        if is_read or not (law.holds_for_mixtures or name in OF_DENSE):
            continue
        asked: Sequence[float] = [getattr(architecture, attribute)]
        if name == "used" and used:
            asked = used
        others = [value for value in asked if value != getattr(of_runs, attribute)]
        if others:
            fields[name] = others
    return fields


def finding_of(law: Law, architecture: Architecture, fields: dict[str, list[float]]) -> Finding | None:
    """The finding on the fields of models that a law does not read; None where there are none."""
    if not fields:
        return None
    of_runs = law.shaped(architecture.vocab_size, architecture.width_per_block)
    return finding(
        "not_read",
        asked=", ".join(f"--shape={name}:{value:g}" for name, values in fields.items() for value in values),
        form=law.form.name,
        own=", ".join(f"{name} {getattr(of_runs, FIELDS[name]):g}" for name in fields),
        columns=", ".join(law.form.columns),
    )
