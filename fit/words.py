"""Amounts as people write them."""


def amount(x):
    """A count: 9.71B, 1.68M."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(x) >= size:
            return f"{x / size:.3g}{letter}" if abs(x) < 1000 * size else f"{x / size:.0f}{letter}"
    return f"{x:.3g}"


def memory(n_bytes):
    """Bytes: 80 GB, 337 KB; a GB is 1e9 bytes."""
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB")):
        if n_bytes >= size:
            return f"{n_bytes / size:.3g} {unit}" if n_bytes < 1000 * size else f"{n_bytes / size:.0f} {unit}"
    return f"{n_bytes:.3g} bytes"


def rounded(x):
    """x to two significant digits, for budgets that people read."""
    return float(f"{x:.1e}")
