"""config.router_health: experts that nobody chose, layers that collapse, and the same lines after a resume."""

import json

import jax
import numpy as np
import pytest
from text_fixtures import small_run

from configs import quickstart
from jmoe.errors import Interrupted
from jmoe.model import sharding
from jmoe.run.router_health import BLOCK, RouterHealth, effective_experts
from jmoe.train import train
from tests.jmoe.model.test_model import train_steps


def model_of(**fields):
    config = quickstart.get_config()
    config.model.update(dict(d_model=16, n_blocks=2, n_heads=2, n_experts=8, group_tokens=64) | fields)
    return config.model


def counts(*layers):
    return [list(layer) for layer in layers]


def test_experts_that_no_token_chose_in_a_hundred_steps_are_counted():
    health = RouterHealth(model_of())
    random = np.random.default_rng(0)
    for i in range(3 * BLOCK):
        chosen = random.integers(1, 9, (2, 8))
        chosen[0, 5:] = 0  # of the first layer three experts get nothing,
        if i == 2 * BLOCK:
            chosen[0, 6] = 1  # but for one choice in the last hundred steps
        by_layer, warning = health.add(i, chosen.tolist())
        assert warning == ""
        if i < BLOCK - 1:
            assert by_layer == {}
        else:
            assert by_layer["unchosen"] == [2 if i == 3 * BLOCK - 1 else 3, 0]
            assert 4 < by_layer["effective_experts"][0] < 5.5 < 7 < by_layer["effective_experts"][1] <= 8


def test_effective_experts_are_those_that_share_the_choices():
    count_LE = np.array([[5, 5, 5, 5], [10, 10, 0, 0], [0, 0, 7, 0], [0, 0, 0, 0]])
    np.testing.assert_allclose(effective_experts(count_LE), [4, 2, 1, 1])


@pytest.mark.parametrize(
    "top_k, collapsed, even",
    [(1, [97, 1, 1, 1, 0, 0, 0, 0], [30, 20, 10, 10, 10, 5, 10, 5]), (2, [50, 46, 4, 0, 0, 0, 0, 0], [12] * 8)],
)
def test_a_layer_that_collapses_is_named_once(top_k, collapsed, even):
    """In the third of four blocks, of which the first is dense; again only after it has recovered."""
    health = RouterHealth(model_of(n_blocks=4, n_dense_blocks=1, top_k=top_k))
    warnings = []
    for i in range(5 * BLOCK):
        third = collapsed if i // BLOCK in (1, 2, 4) else even
        _, warning = health.add(i, counts(even, third, even))
        if warning:
            warnings.append((i, warning))
    assert [i for i, _ in warnings] == [2 * BLOCK - 1, 5 * BLOCK - 1]
    uses = {1: "1.2 (4 unchosen)", 2: "2.3 (5 unchosen)"}[top_k]
    said = f"WARNING: routers have collapsed in steps 100 to 199: of 8 experts, block 3 uses {uses}; a higher"
    assert warnings[0][1].startswith(said)


def test_experts_that_every_token_chooses_do_not_collapse():
    health = RouterHealth(model_of(n_experts=2, top_k=2))
    for i in range(BLOCK):
        _, warning = health.add(i, counts([64, 64], [64, 64]))
        assert warning == ""


def test_the_counts_go_on_where_a_checkpoint_left_them():
    random = np.random.default_rng(0)
    steps = random.integers(0, 2, (2 * BLOCK + 50, 2, 8)).tolist()
    whole = RouterHealth(model_of())
    expected = [whole.add(i, chosen) for i, chosen in enumerate(steps)]
    first = RouterHealth(model_of())
    said = [first.add(i, chosen) for i, chosen in enumerate(steps[:130])]
    second = RouterHealth(model_of(), json.loads(json.dumps(first.state())))
    said += [second.add(i, chosen) for i, chosen in enumerate(steps[130:], start=130)]
    assert said == expected


@pytest.fixture(scope="module")
def config(text_glob):
    config = small_run(text_glob, n_tokens=(40_960,), log_every=10, checkpoint_every=30)
    config.model.update(d_model=16, n_blocks=2, n_heads=2, n_experts=4, n_dense_blocks=1, group_tokens=32)
    return config


def test_choices_are_counted_over_devices_and_microbatches_and_change_nothing(config):
    """Every choice of the batch once; the step is that of one which counts nothing."""
    for n_devices, microbatch, balance in ((1, 0, "bias"), (4, 128, "loss")):
        config = config.copy_and_resolve_references()
        config.microbatch_tokens = microbatch
        config.model.balance = balance
        mesh = sharding.make_mesh(config, jax.devices()[:n_devices])
        results = {}
        for config.router_health in (True, False):
            (metrics,), params, _ = train_steps(config, mesh, 1, 1e-3)
            results[config.router_health] = params, metrics
        chosen_LE = results[True][1].pop("chosen")
        assert chosen_LE.shape == (1, 4) and chosen_LE.sum() == 256
        (counted, told), (plain, told_plain) = results[True], results[False]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), told, told_plain)
        for one, other in zip(jax.tree.leaves(counted), jax.tree.leaves(plain), strict=True):
            # as a whole: where a gradient is almost zero, Adam makes a step of its rounding error
            assert np.linalg.norm(other - one) <= 3e-4 * np.linalg.norm(one)


def test_a_run_logs_the_health_of_its_routers_and_resumes_exactly(config, tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda: jax.local_devices()[:1])
    config = config.copy_and_resolve_references()
    config.router_health = True
    train(config, tmp_path / "undisturbed")
    steps = iter(range(1, 10_000))
    with pytest.raises(Interrupted):
        train(config, tmp_path / "stopped", lambda: 15 if next(steps) == 75 else 0)
    train(config, tmp_path / "stopped")
    texts = [(tmp_path / name / "trunk" / "metrics.jsonl").read_text() for name in ("undisturbed", "stopped")]
    assert texts[0] == texts[1]
    lines = [json.loads(line) for line in texts[0].splitlines()]
    for line in lines:
        assert ("unchosen" in line["layers"]) == (line["step"] >= BLOCK - 1)
    last = lines[-1]
    assert last["unchosen"] == sum(last["layers"]["unchosen"]) and 1 <= last["layers"]["effective_experts"][0] <= 4
