"""Writes runs.csv, one row for each finished run of a sweep: python -m launch.collect --workdir=DIR [--mix=code].

The law's columns come first, then what traces the run. Runs that are missing are named with the reason. Results of
two versions of the code, of two corpora, or of a config that is not the sweep's are refused, unless --mix names them.
"""

from absl import flags

from jmoe import cli
from jmoe.storage import files as storage
from launch import jobs as jobs_lib
from launch import record, table

WORKDIR = flags.DEFINE_string("workdir", None, "Directory of the sweep, a folder or gs://...")
MIX = flags.DEFINE_multi_enum(
    "mix", [], jobs_lib.MIXABLE, "What runs.csv may hold two versions of; may be given again."
)


def main(_):
    sweep = record.read(storage.absolute(WORKDIR.value))
    sweep.mix = sorted({*sweep.mix, *MIX.value})
    told, _ = table.write(sweep)
    print(told)


def run():
    flags.mark_flags_as_required(["workdir"])
    cli.run(main)


if __name__ == "__main__":
    run()
