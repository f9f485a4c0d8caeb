"""Error of a sum of gradients over devices when each partial sum is rounded to bfloat16:

    python -m benchmarks.bfloat16_sums

Each device has the mean gradient plus independent noise. A ring adds one device after another, a tree adds in pairs.
"""

import jax.numpy as jnp
import numpy as np

N_WEIGHTS = 20_000
DEVICES = (8, 16, 32, 64, 512)
NOISES = (10.0, 1.0, 0.1)  # of one device's gradient, over the mean


def rounded(x: np.ndarray) -> np.ndarray:
    """Returns float32 numbers, rounded to bfloat16."""
    return x.astype(jnp.bfloat16).astype(np.float32)


def ring(terms: np.ndarray) -> np.ndarray:
    """Returns the sum of [devices, weights] over devices, added one after another."""
    total = terms[0]
    for term in terms[1:]:
        total = rounded(total + term)
    return total


def tree(terms: np.ndarray) -> np.ndarray:
    """Returns the sum of [devices, weights] over a power of two of devices, added in pairs, pairs of pairs, ..."""
    while len(terms) > 1:
        terms = rounded(terms[0::2] + terms[1::2])
    return terms[0]


def error(total: np.ndarray, terms: np.ndarray) -> float:
    """Returns the relative Frobenius error of a sum of `terms`."""
    exact = np.sum(terms, axis=0, dtype=np.float64)
    return float(np.linalg.norm(total - exact) / np.linalg.norm(exact))


def main() -> None:
    """Prints the errors as a table."""
    rng = np.random.default_rng(0)
    mean = rng.standard_normal(N_WEIGHTS)
    print("| devices | " + " | ".join(f"{way}, noise {noise:g}" for noise in NOISES for way in ("ring", "tree")) + " |")
    print("|---" * (1 + 2 * len(NOISES)) + "|")
    for n_devices in DEVICES:
        cells = []
        for noise in NOISES:
            terms = rounded(mean + noise * rng.standard_normal((n_devices, N_WEIGHTS)))
            cells += [f"{error(total, terms):.2%}" for total in (ring(terms), tree(terms))]
        print(f"| {n_devices} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
