"""memory_matched.py at laptop size: dense 204k parameters against E = 2 (197k in total) and E = 4 (180k), equal FLOPs.

python -m launch.sweep --sweep=configs/sweeps/memory_matched_small.py --workdir=runs/memory

Measured once, with the initial values of an earlier version, in 6.6 minutes of processor time. Losses are in nats per
byte of one machine's text, so compare within a row:

    FLOPs of the dense model on    dense    E = 2    E = 4
                500,000 bytes     2.1729   1.9800   1.8154
              1,000,000 bytes     1.8963   1.7562   1.6757
"""

from configs import quickstart
from configs.sweeps import memory_matched


def get_sweep() -> tuple[str, list[dict]]:
    """Returns the config file, and a dict of overrides for each model."""
    models = ((48, 1), (40, 2), (32, 4))
    return "configs/quickstart.py", memory_matched.matched(quickstart.get_config(), models, (500_000, 1_000_000))
