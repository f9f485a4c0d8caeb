"""launch: sweeps of jmoe's runs, on this machine, on Slurm and on GKE."""

from jmoe import startup as _startup

_startup.begin()
