"""Writes what commit 6fca2bb computes, which tests/test_before.py compares with what is computed now:

    git worktree add --detach /tmp/before 6fca2bb
    cd /tmp/before && PYTHONPATH=. JAX_PLATFORMS=cpu XLA_FLAGS="--xla_force_host_platform_device_count=8 \\
        --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true \\
        --xla_cpu_use_fusion_emitters=false" python HERE/make.py

(the XLA_FLAGS of tests/support/helpers.py). It writes before.json and workdir.tar.gz beside this file. The modules of
jmoe have moved since: `main` names them as they were, and all else takes them as arguments, so that the test computes
by the same lines.
"""

import hashlib
import importlib.metadata
import json
import os
import pathlib
import sys
import tarfile
import tempfile
import types

import jax
import jax.numpy as jnp
import numpy as np

from configs import joint_moe, quickstart

FOLDER = pathlib.Path(__file__).parent
N_STEPS = 3
OPTIMISED = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}  # XLA's own defaults

# fields of config.model, fields of the config, devices
CASES = {
    "dense": (dict(n_experts=1, norm="rms"), {}, 1),
    "two experts": (dict(n_experts=2, norm="layer", final_norm=False), {"remat": "none"}, 1),
    "eight experts, optimised": (dict(n_experts=8, norm="rms", capacity_factor=1.25), {"remat": "dots"}, 1),
    "eight experts, bfloat16, flash, microbatches": (
        dict(n_experts=8, norm="layer", dtype="bfloat16", attention="flash"),
        {"microbatch_tokens": 256},
        1,
    ),
    "eight experts on a mesh": (dict(n_experts=8, norm="layer"), {"mesh.expert": 2, "mesh.model": 2}, 8),
}
EVALUATED = "dense", "two experts", "eight experts on a mesh"

# jobs of a sweep, whose names hold a digest of their config
JOBS = {
    "configs/joint_moe.py": [
        {},
        {"model.d_model": 1024, "model.n_experts": 32},
        {"model.norm": "rms", "model.final_norm": True, "data.max_epochs": 4.0, "microbatch_tokens": 65_536},
    ],
    "configs/quickstart.py": [
        {},
        {"model.n_experts": 8, "n_tokens": (1_048_576, 2_097_152), "optimizer.lr_law.constant": 3.0, "seed": 7},
    ],
}


def config_of(case: str):
    model, fields, _ = CASES[case]
    config = quickstart.get_config()
    config.model.update(dict(d_model=32, n_blocks=2, n_heads=2, group_tokens=64) | model)
    config.data.seq_len, config.batch_tokens = 32, ((0, 512),)
    config.update_from_flattened_dict(fields)
    return config


def trained(case: str, jmoe) -> dict:
    """What a case computes: initial and last parameters, the metrics of each step, the validation loss of the last.

    jmoe: has sharding, parameter_shardings, init_params, make_optimizer, make_train_step and make_eval_step. The
    validation loss is measured for EVALUATED alone, to save time.
    """
    config = config_of(case)
    mesh = jmoe.sharding.make_mesh(config, jax.devices()[: CASES[case][2]])
    options = OPTIMISED if "optimised" in case else None
    with jax.set_mesh(mesh):
        rows = jax.NamedSharding(mesh, jmoe.sharding.TOKENS)
        placed = jmoe.parameter_shardings(config, mesh)
        params = jax.jit(lambda: jmoe.init_params(config), out_shardings=placed)()
        found = {"initial": arrays(params), "metrics": []}
        opt_state = jax.jit(jmoe.make_optimizer(config).init)(params)
        step, rate = None, np.float32(1e-2)
        for i in range(N_STEPS):
            tokens = np.random.default_rng(i).integers(0, 257, (16, 33)).astype(np.int32)
            batch = jax.device_put(tokens, rows)
            step = step or jmoe.make_train_step(config, mesh).lower(params, opt_state, batch, rate).compile(options)
            params, opt_state, metrics = step(params, opt_state, batch, rate)
            found["metrics"].append(jax.tree.map(np.ndarray.tolist, jax.device_get(metrics)))
        found["last"] = arrays(params)
        if case in EVALUATED:
            weight = jax.device_put(jnp.ones(len(tokens), jnp.float32), rows)
            nats, n_tokens = jmoe.make_eval_step(config, mesh)(params, batch, weight).tolist()[:2]
            found["validation_loss"] = nats / n_tokens
        return found


def arrays(tree) -> dict:
    """Of each array its shape, a hash of its bits, and its root mean square, to compare where bits can't be."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): [
            list(x.shape),
            hashlib.sha256(x.tobytes()).hexdigest()[:16],
            float(np.sqrt(np.mean(np.float64(x) ** 2))),
        ]
        for path, x in jax.tree_util.tree_leaves_with_path(jax.device_get(tree))
    }


def records(record_of) -> dict:
    """Hashes of the records of some configs."""
    wide, neutral = joint_moe.get_config(), quickstart.get_config()
    wide.model.n_experts, neutral.model.norm = 32, "rms"
    configs = {"joint_moe": joint_moe.get_config(), "quickstart": quickstart.get_config(), "wide": wide, "rms": neutral}
    return {
        name: hashlib.sha256(json.dumps(record_of(config), sort_keys=True).encode()).hexdigest()[:16]
        for name, config in configs.items()
    }


def names(load) -> list:
    """The names of JOBS; load: launch.jobs.load."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for config_file, jobs in JOBS.items():
            path = pathlib.Path(folder) / "sweep.py"
            path.write_text(f"def get_sweep():\n    return {config_file!r}, {jobs!r}\n")
            found += [job.name for job in load(str(path), pathlib.Path(folder))[0]]
    return found


def run_config(folder: pathlib.Path):
    """The run of workdir.tar.gz, on a text that it writes into `folder`."""
    for i in range(200):
        (folder / f"{i}.txt").write_text(" ".join(f"{n} squared is {n * n}." for n in range(20 * i, 20 * i + 20)))
    config = quickstart.get_config()
    config.model.d_model, config.model.n_blocks, config.model.n_heads, config.model.n_experts = 8, 1, 2, 2
    config.model.group_tokens, config.data.seq_len, config.data.validation_tokens = 32, 32, 256
    config.batch_tokens, config.n_tokens = ((0, 256),), (4_096, 8_192)
    config.optimizer.warmup_tokens, config.log_every, config.checkpoint_every = 1_024, 1, 1_000
    config.data.path = f"{folder}/*.txt"
    return config


def results(workdir) -> dict:
    """Of each branch what was computed."""
    keep = "loss", "train_loss", "drop_rate", "n_active", "n_total", "n_tokens", "flops", "peak_learning_rate"
    rows = {path.parent.name: json.loads(path.read_text()) for path in sorted(workdir.glob("*/result.json"))}
    return {branch: {name: row[name] for name in keep} for branch, row in rows.items()}


def machine() -> dict:
    """On what XLA's bits depend."""
    cpu = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    line = lambda name: next((line.partition(":")[2].split() for line in cpu if line.startswith(name)), [])
    return {
        "cpu": " ".join(line("model name")),
        "flags": [flag for flag in sorted(line("flags")) if flag.startswith(("avx", "amx", "fma"))],
        "cores": len(os.sched_getaffinity(0)),
        "jaxlib": importlib.metadata.version("jaxlib"),
    }


def main():
    from etils import epath

    from jmoe import check, cli, model, sharding, step, train
    from launch import jobs

    assert model.Decoder  # the commit's own, of before the folders
    assert jax.default_backend() == "cpu" and len(jax.devices()) == 8, "set the environment as above"
    shardings = lambda config, mesh: sharding.parameter_shardings(
        mesh, jax.eval_shape(lambda: step.init_params(config))
    )
    of_optimizer = dict(make_optimizer=lambda config: step.make_optimizer(config.optimizer))
    jmoe = types.SimpleNamespace(**vars(step) | of_optimizer, parameter_shardings=shardings)
    found = {
        "machine": machine(),
        "cases": {case: trained(case, jmoe) for case in CASES},
        "records": records(check.record_of),
        "jobs": names(jobs.load),
    }
    with tempfile.TemporaryDirectory() as folder:
        os.environ["JMOE_CACHE"] = f"{folder}/cache"
        (text := pathlib.Path(folder, "text")).mkdir()
        config, workdir = run_config(text), epath.Path(folder) / "workdir"
        calls = iter([0] * 20 + [15] * 1_000)  # stopped in the trunk's second piece, past the first branch
        try:
            train.train(config, workdir, lambda: next(calls))
            raise SystemExit("the run was not stopped")
        except cli.Interrupted as stopped:
            print(stopped)
        kept = [workdir / "trunk/checkpoints/18", *workdir.glob("*/metrics.jsonl"), *workdir.glob("*/result.json")]
        with tarfile.open(FOLDER / "workdir.tar.gz", "w:gz") as archive:
            for path in kept:
                archive.add(path, path.relative_to(folder))
        train.train(config, workdir)
        found["results"] = results(workdir)
    (FOLDER / "before.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
