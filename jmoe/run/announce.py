"""The lines that a run prints before it trains."""

import jax

from jmoe.config import counts
from jmoe.config.schedule import Segment
from jmoe.config.schema import columns
from jmoe.run import distributed
from jmoe.run.run import Run
from jmoe.text import mixture


def announce(run: Run, missing: list[tuple[Segment, Segment]]) -> None:
    """Prints what the run is going to train (the branches of `missing`), on what text and devices."""
    config = run.config
    model = config.model
    lr_exponent = config.optimizer.lr_law.n_active
    if config.parametrization == "mup" and lr_exponent:
        distributed.log(
            f"note: config.optimizer.lr_law.n_active={lr_exponent} lowers the learning rate of larger models, as "
            "config.parametrization='mup' does by itself; 0 leaves it to that"
        )
    sizes = f"{counts.n_active(model):,} active of {counts.n_total(model):,} parameters"
    layers = f"{model.n_experts} experts" if model.n_experts > 1 else "dense"
    fields = columns(config)
    if fields:
        layers += f" ({', '.join(f'{name} {value}' for name, value in fields.items())})"
    mesh = ", ".join(f"{axis} {size}" for axis, size in run.mesh.shape.items())
    *_, last_trunk, _ = run.schedule.segments
    n_steps = last_trunk.stop
    branch_tokens = ", ".join(f"{run.schedule.tokens_at(branch.stop):,}" for _, branch in missing)
    parts = run.corpus.parts
    n_training_tokens = sum(len(part.corpus.train) for part in parts)
    shares = "".join(f", {part.share / mixture.PERIOD:.1%} {part.name}" for part in parts if part.name)
    distributed.log(
        f"{run.workdir}: {sizes} ({layers}, d_model {model.d_model}, {model.n_blocks} blocks); trunk of "
        f"{n_steps:,} steps, {run.schedule.tokens_at(n_steps):,} tokens, and {len(missing)} of "
        f"{len(config.n_tokens)} branches, to {branch_tokens} tokens; corpus "
        f"{run.corpus.fingerprint} of {n_training_tokens:,} training tokens{shares}; "
        f"{run.mesh.size} x {jax.devices()[0].device_kind} ({mesh})"
    )
