"""launch: sweeps of jmoe's runs, on this machine, on Slurm and on GKE."""

import jmoe  # noqa: F401  begins a command of launch too
