"""jmoe, or python -m jmoe: every command of the trainer, the launcher and the laws under one name.

    jmoe train --config=configs/quickstart.py --workdir=runs/one
    jmoe sweep --sweep=configs/sweeps/quickstart.py --workdir=runs/demo
    jmoe fit plan --law=joint-moe-2025 --flops=1e22

`jmoe train` is `python -m jmoe.train`, `jmoe sweep` is `python -m launch.sweep`, `jmoe fit` is `python -m fit`. This
module imports none of their packages, so that --help and --version work wherever jmoe is installed.
"""

import difflib
import importlib.metadata
import platform
import runpy
import sys

import jmoe

TRAINER = {
    "train": "train one model, or resume its training",
    "prepare": "tokenize text once, for many runs",
    "evaluate": "the loss of a checkpoint on held-out text",
    "generate": "text from a checkpoint",
    "export": "write a checkpoint in the format of transformers",
    "load": "start a run from a model in the format of transformers",
    "compile": "memory, time and traffic of a train step, for chips that need not be here",
}
LAUNCHER = {
    "sweep": "train all models of a sweep, here, on Slurm or on GKE",
    "status": "the state of a sweep, job by job",
    "report": "one page on a sweep: curves, failures, costs, the law so far",
    "logs": "what the trainers of a sweep printed",
    "cancel": "stop a sweep or one of its jobs",
    "retry": "start a failed job again",
    "accept": "go on without a job that failed for good",
    "collect": "write the table of finished runs",
    "image": "the container image for GKE",
}
OTHERS = {
    "fit COMMAND": "fit a law to runs, predict and plan with it: see jmoe fit --help",
    "completion SHELL": "print the completion script of bash or zsh",
}
SHELLS = ("bash", "zsh")


def main() -> int:
    """Runs the command that the arguments name; returns the exit code of those that come back."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print(version())
        return 0
    if not arguments or arguments[0] in ("help", "--help", "-h"):
        print(usage())
        return 0
    name, *rest = arguments
    if name == "fit":
        from fit.__main__ import main as fit_main

        sys.argv = ["jmoe fit", *rest]
        fit_main()
        return 0
    if name == "completion":
        return completion(rest)
    if name in TRAINER or name in LAUNCHER:
        package = "jmoe" if name in TRAINER else "launch"
        sys.argv = [f"jmoe {name}", *rest]
        runpy.run_module(f"{package}.{name}", run_name="__main__", alter_sys=True)
        return 0
    print(f"error: {unknown(name)}", file=sys.stderr)
    return 2


def version() -> str:
    """The versions that a report of a bug names."""
    return f"jmoe {jmoe.__version__} with jax {importlib.metadata.version('jax')} on Python {platform.python_version()}"


def usage() -> str:
    """All commands, a line each."""
    sections = []
    for title, commands in (("Train", TRAINER), ("Sweep", LAUNCHER), ("Laws, and the rest", OTHERS)):
        lines = [f"  {name:16} {summary}" for name, summary in commands.items()]
        sections.append("\n".join([f"{title}:", *lines]))
    head = "jmoe COMMAND --flags trains mixtures of experts, sweeps over them, and plans by their scaling law."
    return "\n\n".join([head, *sections, "jmoe COMMAND --help lists the flags of a command; jmoe --version."])


def unknown(name: str) -> str:
    """The sentence for a command that does not exist."""
    commands = [*TRAINER, *LAUNCHER, "fit", "completion"]
    similar = difflib.get_close_matches(name, commands, n=1)
    hint = f"did you mean {similar[0]}? " if similar else ""
    return f"unknown command {name!r}; {hint}commands: {', '.join(commands)}"


def completion(arguments: list[str]) -> int:
    """Prints the script for the shell that the arguments name."""
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        found = " ".join(arguments)
        print(f"error: jmoe completion: expected one of {', '.join(SHELLS)}, found {found!r}", file=sys.stderr)
        return 2
    from jmoe import completion as completions

    print(completions.script(arguments[0], [*TRAINER], [*LAUNCHER]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
