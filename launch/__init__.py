"""launch: sweeps of jmoe's runs, on this machine, on Slurm and on GKE."""

import sys

if sys.argv[0] == "-m":  # so it is while Python looks for the module of `python -m launch.COMMAND`
    from jmoe import startup

    startup.begin()
