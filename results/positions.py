"""How a model uses the text before a position: its loss by the position in a row, for results/positions.csv.

    python -m results.positions

Evaluates the last checkpoint of each run under runs/bytes_2026 that the table lacks, on rows spread over the held-out
text: whole rows, and rows cut after 16, 32 and 64 bytes. Losses are in nats per byte.

Axes: B rows of a batch; T bytes of a row.
"""

import json
import pathlib

import jax
import numpy as np
from absl import logging
from etils import epath

from jmoe import cli
from jmoe.evaluate import for_text
from jmoe.run import checkpoint
from jmoe.run.step import make_eval_step, mean_losses
from jmoe.text.batches import validation_batches
from jmoe.text.corpus import load
from results.gather import PARTS, WORKDIRS
from results.rows import POSITIONS, texts, write

ENDS = (16, 32, 64, 128)
N_ROWS = 1_536


def main(_: object) -> None:
    """Adds the missing runs to the table, and prints them."""
    logging.set_verbosity(logging.ERROR)
    rows = texts(POSITIONS)
    present = {(row["part"], row["run"]) for row in rows}
    for part in PARTS:
        for result in sorted((WORKDIRS / part).glob("jobs/*/branch-*/result.json")):
            run = str(result.parent.relative_to(WORKDIRS / part))
            if (part, run) not in present:
                rows.append(row_of(part, run, result.parent))
                write(POSITIONS, sorted(rows, key=lambda row: (PARTS.index(row["part"]), row["run"])))
                print(", ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)


def row_of(part: str, run: str, folder: pathlib.Path) -> dict:
    """Returns the table's row of the run in `folder`."""
    job = json.loads((folder.parent / "job.json").read_text())
    row = {"part": part, "run": run, "d_model": job["d_model"], "n_experts": job["n_experts"]}
    row |= {"seed": job["overrides"].get("seed", 0), "n_tokens": job["budgets"][folder.name]}
    start = 0
    total = 0.0  # nats of the row up to `start`
    for end, mean in zip(ENDS, losses_of(epath.Path(folder.parent.absolute()), folder.name), strict=True):
        row[f"loss_{start + 1}_{end}"] = round((mean * end - total) / (end - start), 5)
        start = end
        total = mean * end
    return row


def losses_of(workdir: epath.Path, segment: str) -> list[float]:
    """Returns the mean loss of the same rows up to each of ENDS."""
    folder = checkpoint.find(workdir, segment, None)
    overrides = {"data.validation_tokens": N_ROWS * ENDS[-1]}
    _, config, mesh, params = checkpoint.read(folder, lambda config: for_text(config, overrides))
    corpus = load(config.data, config.model.vocab_size)
    with jax.set_mesh(mesh):
        rows = np.concatenate([batch for batch, _ in validation_batches(corpus, config, mesh)])  # [N_ROWS, T + 1]
        step = make_eval_step(config, mesh)

        def mean(end: int) -> float:
            size = config.batch_tokens[0][1] // end
            batches = (rows[first : first + size, : end + 1] for first in range(0, N_ROWS, size))
            return mean_losses(step, params, ((batch, np.ones(len(batch), np.float32)) for batch in batches))[0]

        return [mean(end) for end in ENDS]


if __name__ == "__main__":
    cli.run(main)
