"""Stops a sweep, whatever runs it; trainers save first, and launch.sweep goes on later.

python -m launch.cancel --workdir=DIR
"""

from absl import flags

from jmoe import cli, storage
from launch import jobs as jobs_lib

WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the sweep, a folder or gs://...")


def main(_):
    sweep = jobs_lib.read(storage.absolute(WORKDIR.value))
    print(sweep.engine.cancel(sweep))


def run():
    flags.mark_flags_as_required(["workdir"])
    cli.run(main)


if __name__ == "__main__":
    run()
