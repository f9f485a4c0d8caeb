"""Everything that is measured on a GPU or a TPU, by one command: `make gpu`, `make tpu`."""
