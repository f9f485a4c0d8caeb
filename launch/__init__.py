"""launch: sweeps of jmoe's runs, on this machine, on Slurm and on GKE."""
