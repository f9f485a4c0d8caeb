"""The question that each write of a process asks first: does it still own what it writes to?

Locks (jmoe/storage/ownership.py) and leases (jmoe/storage/lease.py) answer it. A process that owns nothing may write
anywhere.
"""

import contextlib
from collections.abc import Callable, Generator

# Ends this process if it has lost what it owned; else returns for how many more seconds it owns that in any case.
OwnerCheck = Callable[[], float]
_owner_checks: list[OwnerCheck] = []


@contextlib.contextmanager
def checking_owner(check: OwnerCheck) -> Generator[None]:
    """Within the block, every write of this process calls `check()` first."""
    _owner_checks.append(check)
    try:
        yield
    finally:
        _owner_checks.remove(check)


def check_owner() -> float | None:
    """Ends this process if it has lost what it owned. Called before each write.

    Returns:
      Seconds for which the process owns that in any case; None if it owns nothing.
    """
    return min([check() for check in list(_owner_checks)], default=None)
