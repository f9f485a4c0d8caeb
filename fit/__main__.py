"""Command line of fit: python -m fit COMMAND --flags; see python -m fit help."""

import dataclasses
import importlib
import inspect
import io
import os
import re
import signal
import sys
from types import FrameType
from typing import Any

from fit import __version__
from fit.commands import former_flags
from fit.errors import TableError, UserError
from fit.messages.printable import printable_lines

COMMANDS = {  # name: (the module of fit.commands that has it, what it does)
    "import": ("imports", "make a table of runs of another tool's: Weights & Biases, TensorBoard, MaxText, ..."),
    "laws": ("laws", "list the laws that need no file: their columns, fitted range and source"),
    "law": ("laws", "fit a law to a table of runs"),
    "predict": ("laws", "predict the loss of one model or of a table of them"),
    "tasks": ("tasks", "map loss to the accuracies of tasks, for what a plan's model is expected to reach"),
    "plan": ("plans", "the best size, tokens and experts under constraints"),
    "add": ("studies", "add a finished run to the table: was it as predicted, and what does the law now say"),
    "next": ("studies", "which runs to train next"),
    "compare": ("plans", "what several laws answer to one budget"),
    "holistic": (
        "studies",
        "the complete architecture of a mixture for a budget, and the laws behind it fitted to runs",
    ),
    "speedup": ("studies", "how many times the compute a law needs for the losses of other runs"),
    "surface": ("studies", "the loss over size and sparsity at equal FLOPs"),
    "table": ("pictures", "the paper's tables for any law"),
    "plot": ("pictures", "the paper's figures for any law, and a fit's own"),
    "lr": ("laws", "fit the law of peak learning rates (Eq. 10)"),
    "report": ("pictures", "one HTML page with every table and figure"),
    "page": ("pictures", "one HTML page that plans in the browser"),
}
OUTPUTS = ("out", "emit_config", "emit_sweep")  # flags that name a file to write, in any command
UPDATED = ("add", "law")  # the command that may write its file of this flag again
# what absl says of a flag's value
NOT_TRUE_OR_FALSE = re.compile(r"flag (--\w+=.*): \('Non-boolean argument to boolean flag', .*\)")
NO_CHOICE = re.compile(r"flag (--\w+=.*): value should be one of <(.*)>")
# What pip calls a package, where that differs from what Python imports.
PIP_NAMES = {"absl": "absl-py", "pyarrow": "'jmoe[parquet]'", "tensorboard": "'jmoe[train]'"}


def main() -> None:
    """Entry point; exits with 0, with 2 and one sentence on a user's mistake, or with 130 when interrupted."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # answers have × and 10²²; an ASCII locale would end in an error
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    try:
        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:
        print("fit: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


def _interrupted(signum: int, frame: FrameType | None) -> None:
    """On Ctrl-C raises KeyboardInterrupt; during an import, where a callback can lose it, exits at once."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os.write(2, b"fit: interrupted\n")
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


def run(arguments: list[str]) -> int:
    """Runs one command; returns its exit code."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # small float64 problems: an accelerator would only slow them
    if not arguments or arguments[0] in ("help", "--help", "-h", "--helpfull", "--helpshort"):
        print(
            "Fit scaling laws of dense and mixture-of-experts models, predict with them, plan by them.\n\n"
            "python -m fit COMMAND --flags\n"
        )
        for name, (_, what) in COMMANDS.items():
            print(f"  {name:8} {what}")
        print("\npython -m fit COMMAND --help lists its flags, with an example.")
        return 0
    if arguments == ["--version"]:
        print(f"fit {__version__}")
        return 0
    name = arguments[0]
    try:
        if name not in COMMANDS:
            raise UserError(f"unknown command {name!r}; commands: {', '.join(COMMANDS)}")
        command = class_of(name)
        former_flags.check(name, arguments[1:])
        return _command(name, command, arguments[1:])
    except UserError as e:
        print(f"fit {name}: {printable_lines(e.sentence)}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as e:
        package = (e.name or "").partition(".")[0]
        if package in ("", "fit"):
            raise
        how = f"python -m pip install {PIP_NAMES.get(package, package)}"
        print(f"fit {name}: the package {package} is missing: install it by {how}", file=sys.stderr)
        return 2


def class_of(name: str) -> Any:
    """The class of a command: PlanCommand of plan."""
    module = importlib.import_module(f"fit.commands.{COMMANDS[name][0]}")
    return getattr(module, f"{name.capitalize()}Command")


def _command(name: str, command: Any, arguments: list[str]) -> int:
    """Runs the command of this name and class with a flag for each of its fields."""
    from absl import flags

    from fit.options import flag_of

    values = _flags_of(command)
    if any(argument in ("--help", "-help", "-h") for argument in arguments):
        _print_help(command, values)
        return 0
    try:
        positional = values(["fit", *arguments])[1:]
    except flags.Error as e:
        raise UserError(_of_flag(" ".join(str(e).split()))) from e
    source = getattr(command, "SOURCE", None)  # what the command takes beside flags
    if len(positional) > bool(source):
        raise UserError(f"found {positional[-1]!r}, expected only flags such as --name=value")
    if source and not positional:
        raise UserError(f"{source} is missing; see python -m fit {name} --help")
    for flag_name in values:
        flag = values[flag_name]
        is_text = isinstance(flag.value, str) and not flag.value.strip()
        if flag.present and (is_text or flag.value == []):  # as of an unset shell variable
            raise UserError(f"--{flag.name}= is empty; give it a value or leave it out")
    _check_outputs(name, values, positional)
    options = {field.name: values[flag_of(field.name)].value for field in _flagged(command)}
    try:
        command(**options).run(*positional)
    except TableError as e:
        from fit.commands import suggested_command

        line = suggested_command.with_flags(name, list(options), arguments, e)
        raise UserError(e.sentence + line) from e
    return 0


def _of_flag(error: str) -> str:
    """absl's sentence on a flag, in the words of our own."""
    switch = NOT_TRUE_OR_FALSE.fullmatch(error)
    if switch:
        return f"{switch[1]}: expected true or false"
    choice = NO_CHOICE.fullmatch(error)
    if choice:
        return f"{choice[1]}: expected one of {choice[2].replace('|', ', ')}"
    return error


def _check_outputs(command: str, values: Any, positional: list[str]) -> None:
    """UserError, before the command works, where a file cannot be written, or is one that the command reads: nobody
    else may have a copy of it."""
    from fit.options import listed
    from fit.table.files import check_writable

    for name in OUTPUTS:
        output = values[name].value if name in values else None
        check_writable(output)
        if output is None or not os.path.isfile(output):
            continue
        read = [("SOURCE", path) for path in positional]
        for other in values:
            if other not in OUTPUTS and (command, other) != UPDATED:
                read.extend((f"--{other}", path) for path in listed(values[other].value) if isinstance(path, str))
        for source, path in read:
            if os.path.isfile(path) and os.path.samefile(path, output):
                raise UserError(f"--{name}={output}: {source} is the same file, which would be lost; name another")


def _flagged(command: Any) -> list[dataclasses.Field]:
    """The fields of a command that have a flag; the others are arguments in Python alone."""
    return [field for field in dataclasses.fields(command) if "of_python" not in field.metadata]


def _flags_of(command: Any) -> Any:
    """absl's FlagValues with a flag for each field of a command."""
    from absl import flags

    from fit.options import flag_of

    values = flags.FlagValues()
    for field in _flagged(command):
        kind = field.metadata["flag"]
        default = field.default
        if isinstance(default, tuple):
            default = [value if isinstance(value, str) else f"{value:g}" for value in default]
        if kind in ("float", "integer"):  # the field itself reads what the user types, such as 1.5B or 80GB
            kind = "string"
            default = None if default is None else str(default)
        arguments = [flag_of(field.name), default]
        if field.metadata["choices"]:
            arguments.append(list(field.metadata["choices"]))
        define = getattr(flags, f"DEFINE_{kind}")
        define(*arguments, field.metadata["help"], flag_values=values)
    return values


def _print_help(command: Any, values: Any) -> None:
    """Prints the docstring and the flags of a command, and below a flag its fields."""
    from fit.options import flag_of

    print(f"{inspect.getdoc(command)}\n\nflags:")
    for field in sorted(_flagged(command), key=lambda field: field.name):
        flag = values[flag_of(field.name)]
        help = flag.help.partition(";\n")[0]  # absl adds that a flag may be repeated
        default = (flag.default_as_str or "").strip("'")  # absl puts texts into quotes
        default_note = f" (default {default.removesuffix('.0')})" if default else ""
        print(f"  --{flag.name}: {help}{default_note}")
        if "group" in field.metadata:
            for part in dataclasses.fields(field.metadata["group"]):
                print(f"      {part.name}: {part.metadata['help']}")


if __name__ == "__main__":
    main()
