"""`python tests/support/compiled.py NAME FLAGS` is `python -m jmoe.compile FLAGS`, but reads from tests/data/compiled
what libtpu made of the same program before: its text, its memory, its FLOPs as XLA counts them. It is the same program
if the lowered text, the topology and libtpu's version are the same; any other is compiled. Where NAME has no file, one
is written: to record a changed program, delete its files and run the test.
"""

import hashlib
import importlib.metadata
import json
import lzma
import os
import pathlib
import runpy
import sys
import types

FOLDER = pathlib.Path(__file__).parents[1] / "data" / "compiled"


def main(name: str, *flags: str) -> None:
    import jax

    jax.config.update("jax_traceback_in_locations_limit", 0)  # else paths and numbers of lines are part of a program
    compile_anew = jax.stages.Lowered.compile
    n_compiled = 0

    def compile_once(lowered):
        nonlocal n_compiled
        path = FOLDER / f"{name}-{n_compiled}.json.xz"
        n_compiled = n_compiled + 1
        (topology,) = (flag for flag in flags if flag.startswith("--topology="))
        effort = os.environ["JAX_EXEC_TIME_OPTIMIZATION_EFFORT"]
        libtpu = importlib.metadata.version("libtpu")
        made_of = hashlib.sha256("\n".join([libtpu, topology, effort, lowered.as_text()]).encode()).hexdigest()
        if path.exists() and (read := json.loads(lzma.decompress(path.read_bytes())))["made_of"] == made_of:
            print(f"read from {path}: the same program", file=sys.stderr)
            return Read(**read)
        compiled = compile_anew(lowered)
        if not path.exists():
            kept = Read.of(compiled, made_of)
            path.write_bytes(lzma.compress(json.dumps(vars(kept)).encode()))
        return compiled

    jax.stages.Lowered.compile = compile_once
    sys.argv[1:] = flags
    runpy.run_module("jmoe.compile", run_name="__main__", alter_sys=True)


class Read(types.SimpleNamespace):
    """What jmoe.compile asks a jax.stages.Compiled."""

    @classmethod
    def of(cls, compiled, made_of: str):
        sizes = compiled.memory_analysis()
        memory = {name: getattr(sizes, name) for name in dir(sizes) if name.endswith("_size_in_bytes")}
        by_xla = compiled.cost_analysis()
        return cls(made_of=made_of, text=compiled.as_text(), memory=memory, flops=by_xla and by_xla["flops"])

    def as_text(self) -> str:
        return self.text

    def memory_analysis(self):
        return types.SimpleNamespace(**self.memory)

    def cost_analysis(self) -> dict | None:
        return self.flops and {"flops": self.flops}


if __name__ == "__main__":
    main(*sys.argv[1:])
