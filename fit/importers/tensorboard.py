"""TensorBoard event files: each folder with some is a run, with the last value of each scalar by its tag, and `step`,
the last one; --columns=loss:TAG says which is the loss."""

import os

from fit.aliases import Json


def rows(paths: list[str]) -> list[Json]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    found = []
    folders = sorted({os.path.dirname(path) for path in paths})
    above = os.path.commonpath(folders)
    for folder in folders:
        events = EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0}).Reload()
        tags = events.Tags()
        last = {tag: (events.Scalars(tag)[-1].step, events.Scalars(tag)[-1].value) for tag in tags["scalars"]}
        for tag in tags["tensors"]:  # scalars as TensorFlow 2 and PyTorch's newer writers put them
            event = events.Tensors(tag)[-1]
            if (value := make_ndarray(event.tensor_proto)).size == 1 and value.dtype.kind == "f":
                last[tag] = event.step, float(value.item())
        run = os.path.relpath(folder, above) if len(folders) > 1 else os.path.basename(folder)
        steps = {"step": max((step for step, _ in last.values()), default=0)}
        found.append({"run": run} | steps | {tag: value for tag, (_, value) in last.items()})
    return found
