"""Checkpoints that a disk has damaged: found, named and skipped, whatever file it is and on whichever mesh."""

import functools
import gc
import os
import random
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from etils import epath
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from orbax.checkpoint.experimental import v1

from jmoe.errors import UserError
from jmoe.run import checkpoint
from jmoe.run.checkpoint import Checkpoints
from jmoe.run.record import checksums

# reads that fail leave callbacks that find their event loop closed; jmoe.cli drops these echoes in the programs
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

RECORD = {
    "config": {"model": {"d_model": 16}, "n_tokens": [100], "seed": 0},
    "corpus_fingerprint": "0123456789abcdef",
    "jmoe": "1",
    "jax": "1",
    "orbax": "1",
}


@functools.cache
def state(mesh, seed: int):
    """Parameters and Adam's state like those of training: sharded, replicated and scalar arrays."""

    def place(spec):
        return jax.NamedSharding(mesh, spec)

    keys = jax.random.split(jax.random.key(seed), 3)
    params = {
        "embed": jax.device_put(jax.random.normal(keys[0], (256, 64)), place(P(None, "data"))),
        "blocks": {
            "up": jax.device_put(jax.random.normal(keys[1], (2, 4, 64, 32)), place(P(None, "expert", "data"))),
            "norm": jax.device_put(jax.random.normal(keys[2], (2, 16)), place(P())),
        },
    }
    return params, jax.tree.map(lambda x: x + 1, optax.scale_by_adam().init(params))


def mesh_of(data: int, expert: int):
    devices = jax.devices()[: data * expert]
    return jax.make_mesh((data, expert), ("data", "expert"), axis_types=(AxisType.Explicit,) * 2, devices=devices)


def abstract(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)


def write(folder, mesh, *steps):
    saved = Checkpoints(epath.Path(folder))
    with jax.set_mesh(mesh):
        for step in steps:
            saved.save(step, *state(mesh, step), RECORD)
    saved.wait()
    saved.close()


def restore(folder, mesh, **options):
    saved = Checkpoints(epath.Path(folder))
    with jax.set_mesh(mesh):
        found = saved.restore(*map(abstract, state(mesh, 0)), options.pop("record", RECORD), **options)
    saved.close()
    return found


def assert_is(found, mesh, step):
    assert found is not None and found[0] == step
    jax.tree.map(np.testing.assert_array_equal, tuple(found[1:]), state(mesh, step))


@pytest.fixture(autouse=True)
def leftovers():
    """What failed reads left behind is found and forgotten here, not in whichever test runs next."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "checkpoints"
    write(folder, mesh_of(2, 2), 5, 10)
    return folder


def damages(content: bytes, chance):
    """(what was done, what is left) for one file; None: it is gone."""
    yield "deleted", None
    yield "emptied", b""
    yield "cut in half", content[: len(content) // 2]
    flipped, place = bytearray(content), chance.randrange(len(content))
    flipped[place] ^= 1 << chance.randrange(8)
    yield f"bit of byte {place} flipped", bytes(flipped)


def test_no_damage_to_any_file_ever_gives_a_wrong_state(whole, tmp_path, capfd):
    """Each file of the newest checkpoint, cut and flipped: the state is the saved one, or the checkpoint before is
    taken and the damage named."""
    mesh, chance, skipped, kept = mesh_of(2, 2), random.Random(0), [], []
    names = sorted(path.relative_to(whole / "10") for path in (whole / "10").rglob("*") if path.is_file())
    assert len(names) > 15
    for name in names:
        for what, left in damages((whole / "10" / name).read_bytes(), chance):
            folder = tmp_path / "checkpoints"
            shutil.copytree(whole, folder)
            (folder / "10" / name).unlink() if left is None else (folder / "10" / name).write_bytes(left)
            found, said = restore(folder, mesh), capfd.readouterr().err
            shutil.rmtree(folder)
            if found[0] == 10:
                kept.append((str(name), what))
                assert_is(found, mesh, 10)
                assert "damaged" not in said
            else:
                skipped.append((str(name), what))
                assert_is(found, mesh, 5)
                assert f"{folder}/10 is damaged and skipped: " in said, (name, what, said)
    # the files that hold arrays matter, and so does the record
    large = [str(name) for name in names if (whole / "10" / name).stat().st_size > 10_000]
    assert large and all("/ocdbt.process_0/d/" in name for name in large), large
    for name in ("record/metadata", *large):
        assert {what for other, what in skipped if other == name} >= {"deleted", "emptied", "cut in half"}
    assert len(skipped) > 30, (skipped, kept)


def test_an_emptied_or_foreign_folder_is_skipped(whole, tmp_path, capfd):
    shutil.copytree(whole, tmp_path / "a")
    shutil.rmtree(tmp_path / "a" / "10")
    (tmp_path / "a" / "10").mkdir()
    assert_is(restore(tmp_path / "a", mesh_of(2, 2)), mesh_of(2, 2), 5)
    assert "10 is damaged" in capfd.readouterr().err
    shutil.copytree(whole, tmp_path / "b")
    shutil.rmtree(tmp_path / "b" / "10")
    os.rename(tmp_path / "b" / "5", tmp_path / "b" / "10")
    assert restore(tmp_path / "b", mesh_of(2, 2)) is None
    said = capfd.readouterr().err
    assert "it holds step 5" in said and "no sound checkpoint is left" in said
    # nothing can go on from it, so that it is out of the way of whoever begins again
    assert checkpoint.steps_in(epath.Path(tmp_path / "b")) == [] and (tmp_path / "damaged-10" / "record").exists()


def test_values_swapped_between_arrays_or_places_are_found():
    """What no file check of a well-formed checkpoint would see: another value, two values exchanged, a sign of zero."""
    mesh = mesh_of(1, 1)
    with jax.set_mesh(mesh):
        x = jnp.arange(12, dtype=jnp.float32).reshape(3, 4)
        sums = [
            checksums({"x": y})[0]["x"]
            for y in (x, x.at[0, 0].set(-0.0), x.at[1, 2].add(1e-6), x[::-1], x.T.reshape(3, 4), x.astype(jnp.bfloat16))
        ]
    assert len(set(sums)) == len(sums)


def test_a_checkpoint_moves_to_another_mesh(whole):
    mesh = mesh_of(4, 2)
    assert_is(restore(whole, mesh), mesh, 10)


def test_what_is_not_finite_is_never_saved(tmp_path):
    mesh = mesh_of(2, 2)
    saved = Checkpoints(epath.Path(tmp_path / "checkpoints"))
    with jax.set_mesh(mesh):
        saved.save(5, *state(mesh, 5), RECORD)
        params, opt_state = state(mesh, 10)
        for bad in (jnp.nan, jnp.inf):
            worse = params | {"embed": params["embed"] * bad}
            with pytest.raises(UserError, match="not finite; the last good checkpoint is .*/5; try a lower"):
                saved.save(10, worse, opt_state, RECORD)
    saved.close()
    assert_is(restore(tmp_path / "checkpoints", mesh), mesh, 5)


def test_another_config_is_refused_and_other_versions_are_told(whole, capfd, monkeypatch):
    monkeypatch.setattr(checkpoint.Checkpoints, "_saved_here", set())  # as another process reads it
    other = RECORD | {"config": RECORD["config"] | {"model": {"d_model": 32}}}
    with pytest.raises(UserError, match="config.model.d_model was 16, is 32"):
        restore(whole, mesh_of(2, 2), record=other)
    with pytest.raises(UserError, match="corpus was 0123456789abcdef, is fedc.*fingerprint=0123456789abcdef takes"):
        restore(whole, mesh_of(2, 2), record=RECORD | {"corpus_fingerprint": "fedc"})
    assert_is(restore(whole, mesh_of(2, 2), record=RECORD | {"jax": "2"}), mesh_of(2, 2), 10)
    assert "WARNING: it was written by jax 1, now 2" in capfd.readouterr().err
    longer = RECORD | {"config": RECORD["config"] | {"n_tokens": [100, 200]}}
    assert_is(restore(whole, mesh_of(2, 2), record=longer), mesh_of(2, 2), 10)


def chained(*parts):
    """Adam's state as the optimizer of training holds it: a part of a chain."""
    return optax.chain(optax.clip_by_global_norm(1.0), *parts)


ADAM, DECAY = optax.scale_by_adam(), optax.add_decayed_weights(0.1)
OTHER = {
    "another optimizer": (
        chained(optax.trace(0.9), DECAY),
        {},
        r"opt_state/1/count is int32\[\] there and missing here",
    ),
    "moments of another type": (
        chained(optax.scale_by_adam(mu_dtype=jnp.bfloat16), DECAY),
        {},
        r"opt_state/1/mu/a is float32\[300, 8\] there and bfloat16\[300, 8\] here; .*/mu/b/c is .* here. It",
    ),
    "another name": (
        chained(ADAM, DECAY),
        {"a": None, "z": jnp.ones((300, 8))},
        r"params/a is float32\[300, 8\] there and missing here; params/z is missing .*, and 3 more. It is left as it is"
        r": use the program that wrote it \(jmoe 1\), or another --workdir",
    ),
}


@pytest.mark.parametrize("optimizer, changed, words", OTHER.values(), ids=OTHER)
def test_arrays_of_another_program_are_refused_and_are_no_damage(optimizer, changed, words, tmp_path, capfd):
    """What differs is named, nothing is set aside, and the program that wrote the checkpoint goes on with it."""
    params = {"a": jnp.arange(2400.0).reshape(300, 8), "b": {"c": jnp.arange(5.0)}}
    there = params, jax.tree.map(lambda x: x + 1, chained(ADAM, DECAY).init(params))
    params = {name: x for name, x in (params | changed).items() if x is not None}
    here = params, optimizer.init(params)
    folder = epath.Path(tmp_path / "checkpoints")
    saved = Checkpoints(folder)
    saved.save(5, *there, RECORD)
    saved.save(10, *there, RECORD)
    saved.wait()
    with pytest.raises(UserError, match=words) as error:
        saved.restore(*map(abstract, here), RECORD)
    assert f"{folder}/10 holds other arrays than this program trains: " in str(error.value)
    assert saved.steps() == [5, 10] and [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
    assert "damaged" not in capfd.readouterr().err
    step, *state = saved.restore(*map(abstract, there), RECORD)
    assert step == 10
    jax.tree.map(np.testing.assert_array_equal, tuple(state), there)
    saved.close()


def test_the_next_interface_of_orbax_reads_todays_checkpoints(whole):
    """All three items by the v1 API, without jmoe: the same arrays on their mesh, and a record of their checksums."""
    mesh = mesh_of(2, 2)
    with jax.set_mesh(mesh):
        params, opt_state = state(mesh, 10)
        trees = {"params": abstract(params), "opt_state": abstract(opt_state), "record": None}
        found = v1.load_checkpointables(whole / "10", trees)
        sums, _ = checksums({name: found[name] for name in ("params", "opt_state")})
    assert_is((10, found["params"], found["opt_state"]), mesh, 10)
    assert jax.tree.all(jax.tree.map(lambda x, y: x.sharding == y.sharding, found["params"], params))
    assert found["record"]["step"] == 10 and found["record"]["checksums"] == sums
