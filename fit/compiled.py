"""Compiled programs kept from one start to the next, where the rest of the project keeps its own (see WORKSPACE.md)."""

import contextlib
import os
import pathlib


def folder():
    """$JMOE_CACHE, else $XDG_CACHE_HOME/jmoe, else ~/.cache/jmoe; and in it compiled/."""
    base = os.environ.get("JMOE_CACHE")
    if not base:
        base = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "jmoe"
    return pathlib.Path(base).expanduser() / "compiled"


@contextlib.contextmanager
def kept():
    """Within, what JAX compiles is kept in folder(); JAX_COMPILATION_CACHE_DIR says otherwise. Where nothing can be
    written there it is compiled each time."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    try:
        path = folder()
        path.mkdir(parents=True, exist_ok=True)
        usable = os.access(path, os.W_OK)
    except (OSError, RuntimeError):  # RuntimeError: no home
        usable = False
    if jax.config.jax_compilation_cache_dir or not usable:
        yield
        return
    wanted = dict(jax_compilation_cache_dir=str(path), jax_persistent_cache_min_compile_time_secs=0.1)
    before = {name: getattr(jax.config, name) for name in wanted}
    try:
        for name, value in wanted.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()  # it decides once whether there is one
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
