"""Compiles the steps of results/third for a GPU that need not be here, into files that load where it is:

    make executables                  python -m benchmarks.accelerator.study_executables --topology=H100:1
    python -m benchmarks.accelerator.study_executables --toy      # on this machine's CPU, to try it

jax and its plugin must be those of the GPU's machine. A file holds one step: of a trunk, at one size of batch. Its name
says which code, jax and device it is for; H100 and H200 run the same. Steps come in the order of the study, until they
take --megabytes, since they are carried beside text and wheels. Started again, the command continues; it removes the
files of other code.
"""

import argparse
import functools
import hashlib
import json
import lzma
import pathlib
import pickle
import sys
import time

import jax
from jax.experimental import serialize_executable
from ml_collections import ConfigDict

from benchmarks import measure, train_step
from benchmarks.accelerator import study_configs
from jmoe.cost import memory
from jmoe.cost.topologies import topology_devices
from jmoe.errors import UserError
from jmoe.model import sharding
from jmoe.version import code_version
from results.third.cells import Cell, Trunk

FOLDER = pathlib.Path("runs/executables")
MEGABYTES = 14  # beside 24 of text, 18 of wheels and 9 of the tree
SLOWER = 1.1  # times as long as a step compiled on the device: then all are compiled there
LOSS_TOLERANCE = 1e-3  # relative, of bfloat16 products whose sums are taken in other orders
ROUNDS = 20


@functools.cache
def _code_of_trainer() -> str:
    return code_version()


def file_name(config: ConfigDict, device: jax.Device) -> str:
    """The file of a config's step on a device: a name for people, and a hash of all that the step depends on."""
    step = config.copy_and_resolve_references()
    step.n_tokens = ()
    step.data.path = ""
    capability = getattr(device, "compute_capability", None) or device.device_kind
    source = json.dumps([_code_of_trainer(), device.platform, capability, step.to_json()])
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    model = config.model
    return f"d{model.d_model}-e{model.n_experts}-batch{config.batch_tokens[0][1]}-{digest}.xz"


def save(folder: pathlib.Path, config: ConfigDict, device: jax.Device) -> int:
    """Compiles the step of a config for a device into its file; returns the bytes of the file."""
    _, compiled = memory.compile_step(config, [device])
    content = lzma.compress(pickle.dumps(serialize_executable.serialize(compiled)))
    path = folder / file_name(config, device)
    scratch = path.with_suffix(".new")
    scratch.write_bytes(content)
    scratch.replace(path)
    return len(content)


def load(folder: pathlib.Path, config: ConfigDict, device: jax.Device) -> jax.stages.Compiled:
    """The compiled step of a config from its file; raises what pickle, lzma and jaxlib raise if it does not load."""
    content = (folder / file_name(config, device)).read_bytes()
    return serialize_executable.deserialize_and_load(
        *pickle.loads(lzma.decompress(content)), execution_devices=[device]
    )


def first_loss(config: ConfigDict, compiled: jax.stages.Compiled) -> float:
    """The loss of the first step of a new model."""
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    with jax.set_mesh(mesh):
        step, _ = train_step.stepper(config, mesh, compiled)
        return float(step()["loss"])


def compare(config: ConfigDict, loaded: jax.stages.Compiled, fresh: jax.stages.Compiled) -> dict:
    """Times a loaded step and the same one compiled here in turn; `usable` says whether the loaded one will do."""
    losses = first_loss(config, loaded), first_loss(config, fresh)
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    with jax.set_mesh(mesh):
        arms = {}
        for name, compiled in {"loaded": loaded, "fresh": fresh}.items():
            arms[name], _ = train_step.stepper(config, mesh, compiled)
        seconds, _ = measure.in_turn(arms, ROUNDS)
    ratio = measure.ratio(seconds, "loaded", "fresh")
    is_same = abs(losses[0] / losses[1] - 1) < LOSS_TOLERANCE
    return {"time over fresh": ratio, "losses": losses, "usable": ratio < SLOWER and is_same}


def configs_of_steps(toy: bool) -> list[ConfigDict]:
    """The config of each step of the study, in the order in which the runs need them."""
    cells = study_configs.cells(toy)
    first_cells: dict[Trunk, Cell] = {}
    for cell in cells:
        first_cells.setdefault(cell.trunk, cell)
    configs = []
    for cell in first_cells.values():
        configs += study_configs.one_batch_each(study_configs.config_of(cell, cells, toy))
    return configs


def main() -> int:
    """Compiles the steps that have no file; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", help="the GPU, such as H100:1. Default: the device at hand.")
    parser.add_argument("--out", type=pathlib.Path, default=FOLDER, help="folder of the files")
    parser.add_argument("--megabytes", type=float, default=MEGABYTES, help="about the most that all files take")
    parser.add_argument("--toy", action="store_true", help="two small steps")
    parser.add_argument("--json", type=pathlib.Path, help="file to write the figures to")
    args = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)  # programs for absent devices cannot be read back
    try:
        device = topology_devices(args.topology, 1)[0] if args.topology else jax.devices()[0]
    except UserError as error:
        sys.exit(f"error: {error}")
    args.out.mkdir(parents=True, exist_ok=True)
    sizes = {}
    for config in configs_of_steps(args.toy):
        path = args.out / file_name(config, device)
        begin = time.monotonic()
        sizes[path] = path.stat().st_size if path.exists() else save(args.out, config, device)
        print(f"{path.name}: {sizes[path] / 1e6:.2f} MB, {time.monotonic() - begin:.0f} s", flush=True)
        if sum(sizes.values()) > args.megabytes * 1e6:
            print(f"the steps after it are left out, beyond --megabytes={args.megabytes:g}")
            break
    for path in set(args.out.glob("*.xz")) - set(sizes):
        path.unlink()
    megabytes = sum(sizes.values()) / 1e6
    print(f"{args.out}: {len(sizes)} steps for jax {jax.__version__}, {megabytes:.1f} MB")
    if args.json:
        args.json.write_text(json.dumps({"steps": len(sizes), "MB": megabytes}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
