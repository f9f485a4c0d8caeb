"""What could not train where it is sent is found before anything is submitted, on every backend."""

import helpers
import jax
import pytest
import sweeps
from etils import epath

from configs import joint_moe, quickstart
from jmoe.cost.chips import CHIPS, GiB
from jmoe.cost.memory import compile_step
from jmoe.cost.report import report
from jmoe.errors import UserError
from launch import accelerators, local, preflight, slurm
from launch import jobs as jobs_lib
from launch.backend import Sweep

GKE = {"image": "i", "queue": "q", "namespace": "default", "n_slices": 1, "service_account": None, "spot": True}


@pytest.fixture
def planned(tmp_path, text_glob):
    """A function from overrides to a sweep of one job, on a backend, and its config by name."""
    config = helpers.write_config(tmp_path, text_glob)

    def plan(overrides, backend="local", **options):
        path = sweeps.write_sweep(tmp_path, config, [overrides])
        jobs, configs = jobs_lib.load(path, epath.Path(tmp_path / "run"))
        options = {"sbatch": []} | options
        return Sweep(epath.Path(tmp_path / "run"), path, backend, 1, [], options, jobs), configs

    return plan


MESH = {"mesh.expert": 4, "model.n_experts": 4, "batch_tokens": ((0, 1_024),), "model.group_tokens": 256}


@pytest.mark.parametrize(
    "backend, options, accelerator, words",
    [
        ("local", {}, None, "config.mesh.expert=4 times config.mesh.model=1 does not divide the 1 devices"),
        ("gke", GKE, "v5e:1x1", "does not divide the 1 devices"),
        ("gke", GKE, "v5e:4x4", "which do not divide over 16 devices"),
        ("gke", GKE, "v5e:2x2", ""),
        ("gke", GKE, "tpu7x:1x1x1", "does not divide the 2 devices"),
        ("slurm", {"sbatch": ["--gpus-per-node=2", "--nodes=3"]}, None, "does not divide the 6 devices"),
        ("slurm", {"sbatch": ["--gres=gpu:h100:2", "-N2"]}, None, ""),
        ("slurm", {"sbatch": ["--partition=gpu"]}, "H100:2x4", "which do not divide over 8 devices"),
    ],
)
def test_a_mesh_that_does_not_divide(backend, options, accelerator, words, planned, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    sweep, configs = planned(MESH, backend, **options)
    told = preflight.places(sweep, configs, *sweep.engine.devices(sweep, accelerator))
    assert bool(told) == bool(words)
    if words:
        assert sweep.jobs[0].name in told[0] and words in told[0]
        with pytest.raises(UserError, match="nothing is started"):
            preflight.check(told)


SPANNING = {
    "mesh.expert": 8,
    "model.n_experts": 8,
    "batch_tokens": ((0, 2_048),),
    "n_tokens": (65_536,),
    "model.group_tokens": 128,
}


@pytest.mark.parametrize(
    "accelerator, n_slices, refused",
    [("v5e:2x2", 2, True), ("v5e:2x4", 2, False), ("v5e:2x4", 1, False), ("v4:2x2x1", 2, True), ("H100:4", 2, False)],
)
def test_an_expert_group_stays_within_a_tpu_slice(accelerator, n_slices, refused, planned):
    sweep, configs = planned(SPANNING, "gke", **GKE | {"n_slices": n_slices})
    n_devices, memory = sweep.engine.devices(sweep, accelerator)
    told = preflight.places(sweep, configs, n_devices, memory, accelerators.tpu_slices(accelerator, n_slices))
    assert bool(told) == refused
    if refused:
        assert "does not divide the 4 devices of each of the 2 slices" in told[0]


def test_where_the_devices_are_not_known_only_what_none_could_mend_is_refused(planned, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    assert slurm.Slurm().devices(planned({}, "slurm")[0], None) == (None, None)
    assert not preflight.places(*planned(MESH, "slurm"), None, None)
    told = preflight.places(*planned(MESH | {"mesh.expert": 3}, "slurm"), None, None)
    assert "config.model.n_experts=4 does not divide over config.mesh.expert=3" in told[0]


LARGE = {"model.d_model": 4_096, "model.n_heads": 32, "model.n_blocks": 32, "model.n_experts": 8}


@pytest.mark.parametrize(
    "backend, options, accelerator, fits",
    [
        ("gke", GKE, "v5e:1x1", False),
        ("gke", GKE, "v5e:16x16", True),
        ("slurm", {}, "H100:8", False),
        ("slurm", {}, "H100:4x8", True),
        ("local", {}, None, False),
    ],
)
def test_a_model_that_cannot_fit(backend, options, accelerator, fits, planned, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr(local.os, "sysconf", lambda name: {"SC_PHYS_PAGES": 2**24, "SC_PAGE_SIZE": 2**12}[name])
    sweep, configs = planned(LARGE | {"batch_tokens": ((0, 2**16),), "n_tokens": (2**20, 2**21)}, backend, **options)
    told = preflight.places(sweep, configs, *sweep.engine.devices(sweep, accelerator))
    assert bool(told) != fits, told
    if not fits:
        capacity = CHIPS[accelerator.split(":")[0]].capacity if accelerator else 2**36
        assert f"which has {capacity / GiB:,.1f}" in told[0] and "microbatch_tokens" in told[0]


@pytest.mark.parametrize("n_experts, dtype, optimizer", [(1, "float32", "adamw"), (8, "bfloat16", "muon")])
def test_the_estimate_is_below_what_the_compiler_says(n_experts, dtype, optimizer):
    """It refuses no model that fits: the step takes more than that, and not many times more."""
    config = quickstart.get_config()
    config.model.d_model = 128
    config.model.n_experts = n_experts
    config.model.dtype = dtype
    config.model.group_tokens = 256
    config.optimizer.name = optimizer
    mesh, compiled = compile_step(config, jax.devices()[:2])
    result = report(config, mesh, compiled, None)["memory_bytes"]["peak"]
    assert result / 3 < preflight.least_bytes(config, (2, 1, 1)) < result


def test_the_recipes_sizes_fit_where_the_paper_trained_them():
    config = joint_moe.get_config()
    config.model.d_model = 1_536
    assert preflight.least_bytes(config, (8, 1, 1)) < CHIPS["H100"].capacity


@pytest.mark.parametrize("backend", ["local", "gke"])
def test_nothing_is_written_for_a_sweep_that_could_not_train(backend, tmp_path, text_glob, bucket):
    config = helpers.write_config(tmp_path, text_glob)
    path = sweeps.write_sweep(tmp_path, config, [{"mesh.model": 3}, {}])
    workdir = f"{bucket}/refused" if backend == "gke" else f"{tmp_path}/run"
    flags = ["--image=i", "--queue=q", "--accelerator=v5e:1x1"] if backend == "gke" else []
    output = helpers.fails("launch.sweep", f"--sweep={path}", f"--workdir={workdir}", f"--backend={backend}", *flags)
    assert "nothing is started" in output and "config.mesh.model=3" in output
    assert not epath.Path(workdir).exists()
    if backend != "gke":
        told = helpers.run(
            "launch.sweep", f"--sweep={path}", f"--workdir={workdir}", f"--backend={backend}", "--dry_run", *flags
        )
        assert told.returncode == 2 and "2 jobs" in told.stdout and "this would be refused" in told.stderr


@pytest.mark.parametrize(
    "overrides, words",
    [
        ({"n_tokens": (10**9,)}, "the run asks for 1,000,000,000 training tokens"),
        ({"data.seq_len": 2**19, "batch_tokens": ((0, 2**19),), "n_tokens": (5 * 2**19,)}, "held-out text has"),
    ],
)
def test_too_few_tokens(overrides, words, tmp_path, text_glob):
    """Fresh ones, or held-out ones: on Slurm too, which is not asked."""
    path = sweeps.write_sweep(tmp_path, helpers.write_config(tmp_path, text_glob), [overrides])
    output = helpers.fails("launch.sweep", f"--sweep={path}", f"--workdir={tmp_path}/run", "--backend=slurm")
    assert "nothing is started" in output and words in output
    assert not (tmp_path / "run" / "sweep.json").exists()


def test_a_text_that_is_not_prepared_is_known_by_its_size(tmp_path, monkeypatch):
    """No tokenizer makes more tokens than there are bytes; what they may suffice for is left to the start."""
    monkeypatch.setenv("JMOE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("word " * 20_000)
    config = helpers.write_config(tmp_path, f"{tmp_path}/*.txt")
    for n_tokens, code in ((65_536, 0), (1_000_000_000, 2)):
        path = sweeps.write_sweep(tmp_path, config, [{"n_tokens": (n_tokens,)}])
        start = "launch.sweep", f"--sweep={path}", f"--workdir={tmp_path}/run", "--dry_run"
        done = helpers.run(*start)
        assert done.returncode == code, done.stderr
        assert ("this would be refused" in done.stderr) == bool(code)
        assert ("has at most 200,001 by the size of its files" in done.stderr) == bool(code)
        assert ("is not prepared on this machine" in done.stderr) != bool(code)
    helpers.succeeds(*start, "--text_elsewhere")
    assert not (tmp_path / "cache").exists() and not (tmp_path / "run").exists()
