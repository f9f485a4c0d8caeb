"""Find or create a Python that sees the accelerator and has what the benchmarks import, then runs a module in it:

    python benchmarks/accelerator/python.py --kind=cuda|tpu [--wheels=DIR] -- MODULE FLAGS...
    python benchmarks/accelerator/python.py --collect=DIR [--python=3.12] [--jax=0.11.2]

If the Python that runs this file has a new enough jax that sees the device, as on many clusters, it is used unchanged:
packages it lacks go to a separate folder, .venv-KIND/site, in the newest versions that setup.cfg and its jax allow.
Otherwise .venv-KIND gets jmoe with jax for the driver's CUDA or for TPUs. --collect downloads the wheels of the lacking
packages beforehand, for a Python on Linux x86-64, without jax, its plugin and their dependencies. --wheels installs
from that folder and needs no network.

Only the standard library is imported here.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from typing import NoReturn

ROOT = pathlib.Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
NEEDED = ("absl-py", "etils", "flax", "grain", "ml-collections", "optax", "orbax-checkpoint", "tqdm")
# What tokamax, whose kernels run on GPUs, computes with.
KERNELS = ("einshape", "immutabledict", "jaxtyping", "pydantic", "qwix")
# Without the packages that they name: tensorboard's server takes 27 MB, and only its writer is used. tokamax imports
# xprof, of 65 MB with its own packages, to profile its kernels; a module without it is put in its place.
ALONE = ("tensorboard",)
ALONE_ON_GPUS = ("tensorboard", "tokamax")
STUB = ("xprof", "cli", "tools")
WITH_JAX = ("jax", "jaxlib", "libtpu", "ml-dtypes", "numpy", "opt-einsum", "scipy")  # and its plugins
OLDEST = (0, 10)
GLIBC = range(17, 40)  # manylinux_2_N; pip matches each N exactly
MOST = 100  # MB of wheels
BACKENDS = {"cuda": "gpu", "tpu": "tpu", "cpu": "cpu"}
ASK = "import jax; print(jax.__version__, jax.default_backend())"


def main() -> int:
    """Runs the module; returns its exit code."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--kind", choices=list(BACKENDS))
    parser.add_argument("--wheels", type=pathlib.Path, help="folder that --collect filled")
    parser.add_argument("--collect", type=pathlib.Path, help="folder to fill with wheels")
    parser.add_argument("--python", default="3.12", help="version of the Python that --collect fetches for")
    parser.add_argument("--jax", default="0.11.2", help="version of its jax")
    parser.add_argument("--has", default="", help="names of packages that it has, which --collect leaves out")
    parser.add_argument("module", nargs="*", help="what to run, after --")
    args = parser.parse_args()
    if bool(args.collect) == bool(args.kind):
        parser.error("either --kind or --collect")
    if args.collect:
        return collect(args.collect, args.python, args.jax, args.has.split())
    if args.wheels and not list(args.wheels.glob("*.whl")):
        fail(f"--wheels={args.wheels} holds no wheels; `make wheels` fetches them")
    venv = ROOT / f".venv-{args.kind}"
    if sees(args.kind):
        site = venv / "site"
        complete(site, args.wheels, args.kind)
        python = sys.executable
    elif args.wheels:
        fail(
            f"{sys.executable} has no jax of {OLDEST[0]}.{OLDEST[1]} or later that sees a {args.kind} device, and "
            "--wheels holds none: choose another by make PYTHON=..."
        )
    else:
        python = str(install(venv, args.kind))
    print(f"{python}, with {os.environ.get('PYTHONPATH', 'its own packages')}", flush=True)
    if not args.module:
        return 0
    return subprocess.run([python, "-m", *args.module], cwd=ROOT).returncode


def fail(sentence: str) -> NoReturn:
    """Ends the program with an error."""
    sys.exit(f"error: {sentence}")


def sees(kind: str) -> bool:
    """Whether this Python's jax is new enough and finds a device of that kind."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    if kind == "cpu":
        environment["JAX_PLATFORMS"] = "cpu"
    done = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True)
    version, _, backend = done.stdout.strip().partition(" ")
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    return done.returncode == 0 and numbers >= OLDEST and backend == BACKENDS[kind]


def pip(*args: str | os.PathLike) -> None:
    """Runs this Python's pip; if it fails, the program ends with pip's message and an error."""
    command = [sys.executable, "-m", "pip", *map(str, args), "--quiet", "--disable-pip-version-check"]
    if subprocess.run(command).returncode:
        fail(
            f"{sys.executable}'s pip cannot {args[0]} what the benchmarks need; a host without a network takes it from "
            "a folder: make wheels WHEELS=DIR where there is one, then make gpu WHEELS=DIR here"
        )


def plain(name: str) -> str:
    """Returns the normalized name of a package."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(names: Iterable[str]) -> list[str]:
    """Returns the packages with the versions that setup.cfg requires, if it names them."""
    requirement_of = {}
    for line in (ROOT / "setup.cfg").read_text().splitlines():
        match = re.match(r"([\w.-]+)(\[[\w,]+\])? ?[<>=]=?", line.strip())
        if match:
            # pip would apply the condition after the semicolon to the Python that runs this file
            requirement_of.setdefault(plain(match[1]), line.strip().partition(";")[0])
    return [requirement_of.get(name, name) for name in names]


def missing(*flags: str | os.PathLike, kind: str, beside: Iterable[str] = ()) -> list[str]:
    """Returns NAME==VERSION of what pip would install for the benchmarks, by its dry run.

    Packages that come with jax are left out.

    Args:
        *flags: further flags of pip.
        kind: the kind of device.
        beside: other requirements that the packages must suit.
    """
    packages = []
    needed = (*NEEDED, *KERNELS) if kind == "cuda" else NEEDED
    alone = ALONE_ON_GPUS if kind == "cuda" else ALONE
    for names, more in ((needed, ()), (alone, ("--no-deps",))):
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder, "report.json")
            pip("install", "--dry-run", "--report", report, *flags, *more, *requirements(names), *beside)
            packages += [item["metadata"] for item in json.loads(report.read_text())["install"]]
    return [f"{item['name']}=={item['version']}" for item in packages if plain(item["name"]) not in WITH_JAX]


def complete(site: pathlib.Path, wheels: pathlib.Path | None, kind: str) -> None:
    """Installs the packages that this Python lacks for the benchmarks into `site`, and adds it to PYTHONPATH."""
    site.mkdir(parents=True, exist_ok=True)
    source = ("--no-index", "--find-links", wheels) if wheels else ()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    # permitted, since nothing is installed into the Python itself, even if a distribution manages it
    os.environ["PIP_BREAK_SYSTEM_PACKAGES"] = "1"
    pins = missing(*source, kind=kind)
    if pins:
        pip("install", "--no-deps", "--upgrade", "--target", site, *source, *pins)
    if kind == "cuda" and importlib.util.find_spec("xprof") is None:
        put_stub(site)


def put_stub(site: pathlib.Path) -> None:
    """Writes the module that tokamax imports in place of xprof's."""
    folder = site
    for name in STUB:
        folder /= name
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").touch()
    (folder / "__init__.py").write_text("get_kernel_stats_tool = None\n")


def install(venv: pathlib.Path, kind: str) -> pathlib.Path:
    """Creates a virtual environment with jmoe's trainer and jax for the device; returns its Python."""
    python = venv / "bin" / "python"
    done = venv / ".installed"
    if done.exists():
        return python
    jax = f"jax[{'tpu' if kind == 'tpu' else cuda()}]" if kind != "cpu" else "jax"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    packages = ["-c", CONSTRAINTS, "-e", f"{ROOT}[train]", jax]
    if kind == "cuda":
        packages += requirements(["tokamax"])
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages], check=True)
    done.touch()
    return python


def cuda() -> str:
    """Returns jax's extra for the newest CUDA that the driver runs."""
    try:
        output = subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        fail("this machine has no NVIDIA driver: nvidia-smi does not run")
    version = re.search(r"CUDA(?: UMD)? Version:\s*(\d+)\.", output)
    if not version or int(version[1]) < 12:
        fail(f"jax needs a driver for CUDA 12 or 13, nvidia-smi says {version[0] if version else 'none'}")
    return "cuda13" if int(version[1]) >= 13 else "cuda12"


def collect(folder: pathlib.Path, python: str, jax: str, has: list[str]) -> int:
    """Downloads the wheels but of what the host `has`; fails if they take more than MOST MB."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        fail(f"{folder} is not empty")
    platforms = [f"--platform=manylinux_2_{n}_x86_64" for n in GLIBC] + ["--platform=manylinux2014_x86_64"]
    flags = ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *platforms]
    # pip's dry run would compare the Python that packages require with the one that it runs in
    target = ("--target", folder / "none", "--ignore-installed", "--ignore-requires-python")
    pins = missing(*flags, *target, kind="cuda", beside=[f"jax=={jax}"])
    wanted = [pin for pin in pins if plain(pin.partition("==")[0]) not in map(plain, has)]
    pip("download", "--no-deps", "--dest", folder, *flags, *wanted)
    sizes = [path.stat().st_size for path in folder.iterdir()]
    size = sum(sizes) / 1e6
    print(f"{folder}: {len(sizes)} wheels for Python {python} with jax {jax}, {size:.0f} MB")
    if size > MOST:
        fail(f"these are more than {MOST} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
