"""python -m jmoe, or jmoe: --version, and which commands there are. It needs none of their packages."""

import importlib.metadata
import platform
import sys
from collections.abc import Sequence

import jmoe

COMMANDS = ("train", "prepare", "evaluate", "compile", "generate", "export", "load")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns the exit code.

    Args:
      arguments: Words of the command line; those of the process by default.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments == ["--version"]:
        jax = importlib.metadata.version("jax")
        print(f"jmoe {jmoe.__version__} with jax {jax} on Python {platform.python_version()}")
    elif arguments in ([], ["help"], ["--help"], ["-h"]):
        print(f"jmoe --version\npython -m jmoe.COMMAND --help, where COMMAND is one of {', '.join(COMMANDS)}")
    else:
        print(
            f"error: jmoe takes --version or --help, found {' '.join(arguments)}; the trainer is python -m jmoe.train",
            file=sys.stderr,
        )
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
