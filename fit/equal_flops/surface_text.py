"""The surface of each budget, in words."""

from collections.abc import Iterator

from fit.words.units import amount


def text(found: dict) -> str:
    """Of {budgets: what surface.of_table found}."""
    return "\n".join(_lines(found["budgets"]))


def _lines(rows: list[dict]) -> Iterator[str]:
    for row in rows:
        best, (low_n, high_n), (low_s, high_s) = row["best"], *row["intervals"].values()
        held = "" if row["correlation"] is None else f", held-out correlation {row['correlation']:.3f}"
        fine = f" ({row['left_out']} of finer or coarser experts left out)" if row["left_out"] else ""
        yield f"{row['flops']:.3g} FLOPs: {row['runs']} runs{fine}, RMSE {row['rmse']:.4f}{held}"
        ends = " and ".join(best["at_edge"])
        edge = f"; at the end of the {ends} that were run: not an optimum" if ends else ""
        yield (
            f"  best: n_total {amount(best['n_total'])} [{amount(low_n)}, {amount(high_n)}], sparsity "
            f"{best['sparsity']:.3f} [{low_s:.3f}, {high_s:.3f}], loss {best['loss']:.4f}{edge}"
        )
        at = ", ".join(
            f"{one['sparsity']:.3f}{'*' * one['at_edge']} [{one['interval'][0]:.3f}, {one['interval'][1]:.3f}] at "
            f"{amount(one['n_total'])}"
            for one in row["at_sizes"]
        )
        if at:
            yield f"  best sparsity by n_total: {at}"
    if any(one["at_edge"] for row in rows for one in row["at_sizes"]):
        yield "* at the end of the sparsities that were run at about that size: not an optimum"
