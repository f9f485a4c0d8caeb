"""How fast chips train a model in a layout: what the trainer does there, as step_time.py counts it."""

from fit.planning import mesh, speed, step_time
from fit.planning.constraints import Chips
from fit.planning.speed import Calibration


def setup_of(run: mesh.Run, layout: mesh.Layout, chips: Chips) -> step_time.Setup:
    """How the trainer trains a model in a layout, as step_time.py counts it.

    Each expert has slots for its fair share of the tokens and drops the others (capacity_factor 1). So no device of the
    expert axis has more to do than another.

    Args:
      run: what is trained.
      layout: the mesh, and how the trainer works on it.
      chips: what it is trained on.
    """
    batch = layout.batch_tokens[-1][1]
    tokens_at_once = layout.microbatch_tokens or batch
    return step_time.Setup(
        n_chips=chips.count,
        batch_tokens=batch,
        sequence=run.sequence,
        microbatch_tokens=tokens_at_once * layout.model / chips.count,
        data=layout.data,
        expert=layout.expert,
        model=layout.model,
        remat=layout.remat,
        flash=run.flash,
    )


def tokens_per_second(calibration: Calibration, run: mesh.Run, layout: mesh.Layout, chips: Chips) -> float:
    """Tokens per second of all chips: the median of the calibration's range."""
    setup = setup_of(run, layout, chips)
    return setup.batch_tokens / calibration.seconds(chips.kind, speed.shape_of_model(run.shape), setup)
