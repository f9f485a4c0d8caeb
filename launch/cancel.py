"""Stops a sweep, whatever runs it; trainers save first, and launch.sweep goes on later.

python -m launch.cancel --workdir=DIR
"""

from absl import flags

from jmoe import cli
from jmoe.storage import files as storage
from launch import sweepfile, trainer

WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the sweep, a folder or gs://...", required=True)
PATIENCE = flags.DEFINE_float(
    "patience_seconds", trainer.SECONDS_TO_SAVE, "How long local processes may take to save before they are killed.", 0
)


def main(_):
    sweep = sweepfile.read(storage.absolute(WORKDIR.value))
    print(sweep.engine.cancel(sweep, PATIENCE.value))


if __name__ == "__main__":
    cli.run(main)
