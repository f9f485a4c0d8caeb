"""launch: sweeps of jmoe's runs, on this machine, on Slurm and on GKE."""

import jmoe  # noqa: F401  which begins the start of a command
