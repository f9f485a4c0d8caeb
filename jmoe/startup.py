"""What a command does before it imports anything: Ctrl-C and missing packages during the imports are one sentence.

jmoe/__init__.py and launch/__init__.py call `begin`, so that it comes first whichever module is run; jmoe/cli.py goes
on from there with `over`. Only the standard library is imported here.
"""

import glob
import importlib.util
import os
import signal
import sys

COMMANDS = ("jmoe.", "launch.")
SCRIPTS = ("jmoe-train", "jmoe-sweep")
OWN = ("jmoe", "launch", "fit", "configs", "benchmarks")
DISTRIBUTIONS = {  # where the name to import is not the name to install
    "absl": "absl-py",
    "google": "protobuf",
    "ml_collections": "ml-collections",
    "orbax": "orbax-checkpoint",
    "tensorflow_datasets": "tensorflow-datasets",
    "tiktoken_ext": "tiktoken",
    "yaml": "pyyaml",
}


def begin() -> None:
    """Takes over where this process is one of our commands; as a library, jmoe changes nothing."""
    after_m = sys.orig_argv[sys.orig_argv.index("-m") + 1 :][:1] if "-m" in sys.orig_argv else []
    if not "".join(after_m).startswith(COMMANDS) and os.path.basename(sys.argv[0]) not in SCRIPTS:
        return
    sys.excepthook = _excepthook
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    leave_absent_tpus_alone()


def over() -> None:
    """The command's own handling of errors and signals begins."""
    if signal.getsignal(signal.SIGINT) is _interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def missing_package(error: BaseException) -> str | None:
    """One sentence for an import of a package that is not installed, None for any other error."""
    name = (getattr(error, "name", None) or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or not name or name in OWN:
        return None
    return (
        f"the Python package {name} is missing: install it by `pip install {DISTRIBUTIONS.get(name, name)}`, or all "
        "that jmoe needs by `pip install -c constraints.txt -e .` in its folder"
    )


def leave_absent_tpus_alone() -> None:
    """Where libtpu is installed and there is neither a TPU nor a GPU, jax is told so: libtpu complains for pages."""
    named = [variable for variable in ("TPU_NAME", "TPU_WORKER_ID", "JAX_FORCE_TPU_INIT") if variable in os.environ]
    kinds = "accel*", "vfio/[0-9]*", "nvidia[0-9]*", "kfd", "dxg"
    there = [path for kind in kinds for path in glob.glob(f"/dev/{kind}")]
    if not (os.environ.get("JAX_PLATFORMS") or named or there) and importlib.util.find_spec("libtpu"):
        os.environ["JAX_PLATFORMS"] = "cpu"


def _interrupted(*_) -> None:
    os.write(2, b"interrupted\n")
    os._exit(128 + signal.SIGINT)


def _excepthook(kind, error, trace) -> None:
    if message := missing_package(error):
        print(f"error: {message}", file=sys.stderr, flush=True)
        os._exit(2)
    sys.__excepthook__(kind, error, trace)
