"""python -m launch COMMAND --flags is python -m launch.COMMAND --flags; without a command it lists them."""

import runpy
import sys

from jmoe.__main__ import LAUNCHER


def main() -> int:
    """Runs the command that the first argument names; returns the exit code of those that come back."""
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("help", "--help", "-h"):
        print("\n".join(["python -m launch COMMAND --flags\n", *(f"  {n:8} {what}" for n, what in LAUNCHER.items())]))
        return 0
    name, *rest = arguments
    if name not in LAUNCHER:
        print(f"error: unknown command {name!r}; commands: {', '.join(LAUNCHER)}", file=sys.stderr)
        return 2
    sys.argv = [f"launch {name}", *rest]
    runpy.run_module(f"launch.{name}", run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
