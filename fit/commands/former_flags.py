"""Flags of earlier versions, and what to type now."""

import dataclasses
import shlex
from collections.abc import Sequence

from fit.commands.suggested_command import with_equals
from fit.errors import UserError
from fit.planning.inputs.fields_of_flags import FIELDS

# {command: {(flag, value): what is typed in its place, "" for nothing}}; the value None stands for any
WORDS: dict[str, dict[tuple[str, str | None], str]] = {
    "plan": {("shape", "hardware"): "", ("by", "time"): "", ("by", "flops"): "--mfu=0.4", ("grams_per_kwh", None): ""},
    "compare": {("by", "time"): "", ("by", "flops"): "--mfu=0.4"},
    "law": {("solver", "lm"): "", ("solver", "lbfgs"): "--solver=paper"},
}
COMMANDS = ("plan", "compare", "next", "plot", "table")  # that had these flags
REMOVED = {"by", "grams_per_kwh"}  # flags of fit plan that nothing of the same name replaces


def check(command: str, arguments: Sequence[str]) -> None:
    """Raises UserError, with the command to type now, where arguments have flags of earlier versions.

    Args:
      command: Name of the command.
      arguments: What the user typed behind it.
    """
    of_python = _arguments_of_python() if command == "law" else set()
    plans = _flags_of_plans() if command == "report" else set()
    replaced = {flag for flag, _ in WORDS.get(command, {})}
    old = []  # arguments of earlier versions
    new = []  # all arguments as they are typed now
    of_plan = []  # what fit report now takes in --plan="..."
    for argument in with_equals(arguments, of_python | plans | FIELDS.keys() | replaced):
        name, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--"):
            new.append(argument)
            continue
        if name in of_python:
            raise UserError(f"--{name}: expected in Python, fit.law(runs, {name}={value!r}); fit law has no such flag")
        if name in plans:
            of_plan += replacement("plan", name, value) if equals else [argument]
            old.append(argument)
            continue
        typed_now = replacement(command, name, value) if equals else [argument]
        if typed_now != [argument]:
            old.append(argument)
        new += typed_now
    if of_plan:
        new.append(f"--plan={shlex.join(of_plan)}")
    if old:
        line = shlex.join(["python", "-m", "fit", command, *new])
        raise UserError(f"{old[0]}: a flag of an earlier version; type\n  {line}")


def _arguments_of_python() -> set[str]:
    """The options of fit.law that fit law has no flag for."""
    from fit.fitting.options import FitOptions

    return {field.name for field in dataclasses.fields(FitOptions) if "of_python" in field.metadata}


def _flags_of_plans() -> set[str]:
    """The flags of fit plan, old ones too, that fit report took itself."""
    from fit.render.report_options import FLAGS

    return (FLAGS.keys() - {"verbose"}) | FIELDS.keys() | REMOVED


def replacement(command: str, name: str, value: str) -> list[str]:
    """The flag in place of --name=value: itself where nothing replaces it, nothing where it is left out."""
    replacements = WORDS.get(command, {})
    for key in ((name, value), (name, None)):
        if key in replacements:
            return [replacements[key]] if replacements[key] else []
    if name in FIELDS and command in COMMANDS:
        flag, field = FIELDS[name]
        fields = ",".join(f"{field}:{part}" for part in value.split(","))  # --used=1,2 is --shape=used:1,used:2
        return [f"--{flag}={fields}"]
    return [f"--{name}={value}"]
