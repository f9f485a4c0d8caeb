"""config.optimizer.skip_above: which steps are skipped, what they leave as it was, and the same after a resume."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from text_fixtures import small_run

from jmoe.config.schedule import Schedule, Segment
from jmoe.errors import Interrupted
from jmoe.model import parameters, sharding
from jmoe.run import report, results, spikes, step
from jmoe.text import batches, corpus
from jmoe.train import train

SKIP_ABOVE = 1.02  # so low that ordinary steps are skipped


def skipped_by_hand(norms, skip_above):
    """[(is skipped, median)] of each step, one at a time."""
    decisions = []
    for i, norm in enumerate(norms):
        window = np.sort(np.float32(norms[max(0, i - spikes.WINDOW) : i]))
        median = window[(len(window) - 1) // 2] if i >= spikes.FEWEST else np.float32(0)
        decisions.append((i >= spikes.FEWEST and norm > np.float32(skip_above) * median, median))
    return decisions


def test_a_step_is_skipped_by_the_median_of_the_last_norms():
    """400 gradients, among them single spikes and a rise for good, which is followed after half a window."""
    random = np.random.default_rng(0)
    norms = random.lognormal(0, 0.1, 400).astype(np.float32)
    norms[[5, 50, 51, 130]] *= 100
    norms[250:] *= 10
    optimizer = spikes.skip_spikes(optax.scale_by_adam(), 4.0)
    plain = optax.scale_by_adam()
    params = {"w": jnp.zeros(3)}
    state = optimizer.init(params)
    plain_state = plain.init(params)
    update = jax.jit(optimizer.update)
    update_plain = jax.jit(plain.update)
    direction = np.array([2, 1, 2], np.float32) / 3
    expected = skipped_by_hand(norms.tolist(), 4.0)
    for norm, (skips, median) in zip(norms, expected, strict=True):
        gradient = {"w": jnp.asarray(norm * direction)}
        before = state.inner
        updates, state = update(gradient, state, params)
        if skips:
            np.testing.assert_array_equal(updates["w"], 0)
            jax.tree.map(np.testing.assert_array_equal, state.inner, before)
        else:
            plain_updates, plain_state = update_plain(gradient, plain_state, params)
            np.testing.assert_allclose(updates["w"], plain_updates["w"], rtol=1e-5)
        assert bool(state.skipped) == skips
        assert state.median == pytest.approx(median, rel=1e-6)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), state.inner, plain_state)
    skipped_steps = [i for i, (skips, _) in enumerate(expected) if skips]
    assert skipped_steps[:3] == [50, 51, 130] and skipped_steps[-1] - 250 == pytest.approx(spikes.WINDOW // 2, abs=2)
    assert state.n_skipped == len(skipped_steps)


@pytest.fixture(scope="module")
def config(text_glob):
    config = small_run(text_glob, n_tokens=(20_480,), log_every=1, checkpoint_every=16)
    config.model.update(d_model=16, n_blocks=1, n_heads=2, n_experts=4, top_k=2, balance="bias", group_tokens=64)
    config.optimizer.skip_above = SKIP_ABOVE
    return config


def test_a_skipped_step_changes_no_parameter_bias_or_moment(config):
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    batch = np.random.default_rng(0).integers(257, size=(8, 33)).astype(np.int32)
    with jax.set_mesh(mesh):
        params = parameters.init_params(config)
        opt_state = jax.jit(step.make_optimizer(config).init)(params)
        train_step = step.make_train_step(config, mesh)
        n_skipped = 0
        n_biases_moved = 0
        for i in range(spikes.FEWEST + 20):
            before = jax.tree.map(np.array, (params, opt_state.inner))  # copies: the step reuses the memory of both
            n_tokens_in_row = 33 if i % 4 else 3  # then one token repeated: a larger gradient than random rows have
            rows = np.where(np.arange(33) < n_tokens_in_row, batch, 7).astype(np.int32)
            params, opt_state, values = train_step(params, opt_state, rows, np.float32(1e-3))
            same = jax.tree.map(np.array_equal, before, jax.device_get((params, opt_state.inner)))
            if values["skipped"]:
                n_skipped += 1
                assert all(jax.tree.leaves(same))
            else:
                assert not same[0]["head"]
                n_biases_moved += not same[0]["blocks"]["mlp"]["router_bias"]  # not where the load is even already
            assert values["skipped_steps"] == n_skipped
    assert n_skipped > 3 and n_biases_moved > 20


def logged(folder, segment="trunk"):
    return [json.loads(line) for line in (folder / segment / "metrics.jsonl").read_text().splitlines()]


def test_a_line_on_a_skipped_step_names_its_first_rows():
    rows = {"web": list(range(1000)), "code": [5]}
    values = {"skipped_rows": rows, "grad_norm": 8.0, "grad_norm_median": 2.0, "skipped_steps": 1}
    line = report._skipping(40, Segment("trunk", 0, 100, False), values)
    assert line.endswith("rows of the training text: web 0, 1, 2, 3, 4, 5, 6, 7, and 992 more; code 5")


def test_a_run_logs_what_it_skips_and_resumes_exactly(config, tmp_path, capsys, monkeypatch):
    """Stopped in the middle of its spikes: the same lines, and the same state at the end."""
    monkeypatch.setattr(jax, "devices", lambda: jax.local_devices()[:1])
    monkeypatch.setattr(results, "MOSTLY_SKIPPED", -1.0)  # so that any share of a decay is worth the warning
    config = config.copy_and_resolve_references()
    config.log_every = 4  # steps that are skipped are logged nevertheless
    (result,) = train(config, tmp_path / "undisturbed")
    said = capsys.readouterr().err
    lines = logged(tmp_path / "undisturbed")
    skipped = [line for line in lines if "skipped_rows" in line]
    assert len(skipped) >= 3 and lines[-1]["skipped_steps"] == len(skipped)
    assert any(line["step"] % 4 for line in skipped)
    for line in skipped:
        assert line["grad_norm"] > SKIP_ABOVE * line["grad_norm_median"]
        assert f"WARNING: skipped step {line['step']} of trunk: its gradient norm of {line['grad_norm']:.4g}" in said

    branch = Schedule(config).segments[1]
    n_in_decay = sum("skipped_rows" in line for line in logged(tmp_path / "undisturbed", branch.name))
    share = n_in_decay / (branch.stop - branch.start)
    assert result["skipped_steps"] == len(skipped) + n_in_decay
    assert result["skipped_decay_share"] == pytest.approx(share, abs=1e-6)
    assert f"WARNING: {branch.name}: {share:.0%} of the steps of its decay were skipped" in said

    line = skipped[0]  # its rows are those of the batch
    text = corpus.load(config.data, config.model.vocab_size)
    mesh = sharding.make_mesh(config, jax.devices()[:1])
    schedule = Schedule(config)
    trunk = schedule.segments[0]
    batch = next(batches.training_batches(text, config, schedule, mesh, trunk, line["step"]))
    rows = batches.read_rows([(text.train, row) for row in line["skipped_rows"][""]], config.data.seq_len)
    np.testing.assert_array_equal(batch, rows)

    steps = iter(range(1, 10_000))
    with pytest.raises(Interrupted):
        train(config, tmp_path / "stopped", lambda: 15 if next(steps) > skipped[1]["step"] else 0)
    (resumed,) = train(config, tmp_path / "stopped")
    names = ("skipped_steps", "skipped_decay_share", "loss", "train_loss", "drop_rate")
    assert {name: resumed[name] for name in names} == {name: result[name] for name in names}
    assert logged(tmp_path / "stopped") == lines
    records = []
    for name in ("undisturbed", "stopped"):
        folder = tmp_path / name / "trunk" / "checkpoints" / str(trunk.stop)
        records.append(json.loads((folder / "record" / "metadata").read_text())["checksums"])
    assert records[0] == records[1] and "opt_state/norm_W" in "".join(records[0])
