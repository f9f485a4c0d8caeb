"""Several models in one step against each of them alone."""

import json
import signal

import helpers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from configs import quickstart
from jmoe.errors import Interrupted, UserError
from jmoe.model import sharding
from jmoe.model.decoder import init_params
from jmoe.run import together as together_lib
from jmoe.run.step import make_optimizer, make_train_step
from jmoe.train import train


def small():
    config = quickstart.get_config()
    config.model.d_model, config.model.n_experts, config.model.group_tokens = 16, 4, 64
    config.data.seq_len, config.batch_tokens = 32, ((0, 512),)
    return config


FINE = dict(n_blocks=2, n_dense_blocks=1, top_k=2, d_expert=24, n_shared_experts=1, balance="bias", scores="sigmoid")
GROUPED = dict(n_heads=4, n_kv_heads=2, head_dim=8, qk_norm="projection", tied_embeddings=True)


@pytest.mark.parametrize(
    "n_devices, expert, model, fields", [(1, 1, 1, {}), (8, 2, 2, {}), (1, 1, 1, FINE), (8, 1, 2, GROUPED)]
)
def test_each_model_is_what_it_would_be_alone(n_devices, expert, model, fields):
    config = small()
    config.model.update(fields)
    config.mesh.expert, config.mesh.model = expert, model
    mesh = sharding.make_mesh(config, jax.devices()[:n_devices])
    rng = np.random.default_rng(0)
    rates = np.float32([[1e-3, 1e-2, 3e-2]] * 4)
    active = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1], [1, 0, 0]], bool)
    with jax.set_mesh(mesh):
        place = jax.NamedSharding(mesh, sharding.TOKENS)
        batches = [[jax.device_put(row, place) for row in rows] for rows in rng.integers(257, size=(4, 3, 16, 33))]
        batches = jax.tree.map(lambda a: a.astype(jnp.int32), batches)

        def start(seed):
            config.seed = seed
            placed = sharding.parameter_shardings(mesh, config.model)
            params = jax.jit(lambda: init_params(config), out_shardings=placed)()
            return params, make_optimizer(config.optimizer).init(params)

        alone = []
        one_step = make_train_step(config, mesh)
        for m in range(3):
            state, history = start(m), []
            for k in range(4):
                if active[k, m]:
                    *state, metrics = one_step(*state, batches[k][m], rates[k, m])
                    history.append(metrics)
            alone.append((state, history))

        stack = together_lib._Stack(config, mesh, 3)
        states, histories = [start(m) for m in range(3)], [[], [], []]
        for k in range(4):
            asked = {m: (states[m], batches[k][m], rates[k, m]) for m in range(3) if active[k, m]}
            for m, (states[m], metrics) in stack.step(asked).items():
                histories[m].append(metrics())
    losses = [history[0]["loss"] for _, history in alone]
    assert min(abs(losses[0] - losses[1]), abs(losses[0] - losses[2])) > 1e-3  # or the test would show nothing
    for (one_state, one_history), state, history in zip(alone, states, histories):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=3e-4, atol=3e-5), one_history, history)
        for one, other in zip(jax.tree.leaves(tuple(one_state)), jax.tree.leaves(tuple(state)), strict=True):
            # as a whole: where a gradient is almost zero, Adam makes a step of its rounding error
            assert np.linalg.norm(other - one) <= 3e-4 * np.linalg.norm(one)
            assert other.sharding.is_equivalent_to(one.sharding, one.ndim)


@pytest.fixture(scope="module")
def configs(tmp_path_factory):
    """Three models that differ in seed, learning rate and budgets, the first with a second phase of larger batches."""
    text = helpers.write_text(tmp_path_factory.mktemp("text"))
    found = []
    for seed, n_tokens in enumerate([(8_192, 16_384), (8_192,), (10_240,)]):
        config = small()
        config.data.path, config.data.validation_tokens = text, 2_048
        config.seed, config.n_tokens, config.optimizer.warmup_tokens = seed, n_tokens, 1_024
        config.batch_tokens = ((0, 512), (8_192, 1_024))
        config.optimizer.lr_law.constant += 0.3 * seed
        config.log_every, config.checkpoint_every = 1, 5
        found.append(config)
    with pytest.MonkeyPatch.context() as patch:  # of one device, as eight on two cores are slow
        patch.setattr(jax, "devices", lambda: jax.local_devices()[:1])
        yield found


@pytest.fixture(scope="module")
def together(configs, tmp_path_factory):
    folder = epath.Path(tmp_path_factory.mktemp("together"))
    return folder, together_lib.train(configs, [folder / str(m) for m in range(3)])


def files(folder) -> dict:
    """What was computed: metrics by line, results, and the checksums of the last checkpoint."""
    found = {}
    for path in sorted(folder.glob("*/metrics.jsonl")):
        found[path.parent.name] = [json.loads(line) for line in path.read_text().splitlines()]
        newest = max(
            (p for p in (path.parent / "checkpoints").iterdir() if p.name.isdigit()), key=lambda p: int(p.name)
        )
        found[path.parent.name].append(json.loads((newest / "record/metadata").read_text())["checksums"])
    for path in sorted(folder.glob("*/result.json")):
        found[f"{path.parent.name}/result"] = json.loads(path.read_text()) | {"seconds": 0, "sha256": ""}
    return found


def test_a_run_together_leaves_what_it_would_leave_alone(configs, together, tmp_path):
    folder, outcomes = together
    for m in (0, 2):
        alone = train(configs[m], epath.Path(tmp_path / str(m)))
        assert [r["n_tokens"] for r in alone] == [r["n_tokens"] for r in outcomes[m]]
        np.testing.assert_allclose([r["loss"] for r in outcomes[m]], [r["loss"] for r in alone], rtol=2e-3)
        one, other = files(tmp_path / str(m)), files(folder / str(m))
        assert one.keys() == other.keys()
        for name in one:
            if not name.endswith("/result"):
                steps = lambda lines: [(x["step"], x["n_tokens"], x["learning_rate"]) for x in lines[:-1]]
                assert steps(one[name]) == steps(other[name])


def test_the_others_change_nothing(configs, together, tmp_path):
    """Without one of them, with one that diverges, interrupted and resumed: the same bits."""
    folder, _ = together
    wild = configs[0].copy_and_resolve_references()
    wild.optimizer.lr_law.constant += 60.0
    told, places = [], [epath.Path(tmp_path / name) for name in ("wild", "1", "2")]
    calls = iter(range(10_000))

    def stop():
        return signal.SIGTERM if next(calls) > 12 else 0

    with pytest.raises(Interrupted, match="every model is saved"):
        together_lib.train([wild, None, configs[2]], places, stop)
    outcomes = together_lib.train([wild, *configs[1:]], places, on_failure=lambda m, error: told.append(m))
    assert told == [0]
    assert isinstance(outcomes[0], UserError) and "non-finite" in str(outcomes[0])
    for m in (1, 2):
        assert files(tmp_path / str(m)) == files(folder / str(m))


def test_what_is_done_is_not_done_again_and_unlike_models_are_refused(configs, together):
    folder, outcomes = together
    assert together_lib.train(configs, [folder / str(m) for m in range(3)]) == outcomes
    other = configs[1].copy_and_resolve_references()
    other.optimizer.b2 = 0.99
    with pytest.raises(UserError, match="equal configs but for"):
        together_lib.train([configs[0], other], [folder / "0", folder / "other"])
    assert not (folder / "other").exists()
