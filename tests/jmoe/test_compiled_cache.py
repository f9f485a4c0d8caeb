"""Compiled steps from one start to the next: in the cache by default, and on gs:// for all hosts."""

import subprocess

import helpers
import jax
import pytest
from etils import epath

from jmoe import train
from jmoe.storage import files


@pytest.fixture
def settings():
    """jax's settings of the cache, put back at the end."""
    names = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"
    values = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in values.items():
        jax.config.update(name, value)


def test_compiled_steps_are_kept_unless_the_user_names_a_place(settings):
    jax.config.update("jax_compilation_cache_dir", "gs://bucket/compiled")
    train.keep_compiled()
    assert jax.config.jax_compilation_cache_dir == "gs://bucket/compiled"
    jax.config.update("jax_compilation_cache_dir", None)
    train.keep_compiled()
    assert jax.config.jax_compilation_cache_dir == str(files.cache_dir() / "compiled")


def test_hosts_share_compiled_steps_on_gs(text_glob, tmp_path):
    """What the first start wrote is what the second one reads: it adds nothing."""
    config = helpers.write_config(tmp_path, text_glob)
    names = []
    with helpers.bucket() as bucket:
        environment = helpers.environment() | {"JAX_COMPILATION_CACHE_DIR": f"{bucket}/compiled"}
        for workdir in (tmp_path / "one", tmp_path / "two"):
            flags = f"--config={config}", f"--workdir={workdir}", "--config.n_tokens=(2048,)"
            command = helpers.command("jmoe.train", *flags)
            done = subprocess.run(
                command, env=environment, cwd=helpers.ROOT, capture_output=True, text=True, timeout=600
            )
            assert done.returncode == 0, done.stderr
            names.append(sorted(path.name for path in epath.Path(f"{bucket}/compiled").iterdir()))
    assert any(name.startswith("jit_train_step-") for name in names[0])
    assert names[0] == names[1]
