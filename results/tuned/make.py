"""Whether best rates transfer over widths, and what Muon saves: tables and a picture from rates.csv and recipes.csv.

    python -m results.tuned.make gather    # runs/tuned/{rates,recipes}/runs.csv -> rates.csv, recipes.csv
    python -m results.tuned.make           # the tables of results/tuned/README.md, and tuned.png beside it

Losses in nats per byte. mup is standard at width 48, so those runs count as both.
"""

import itertools
import math
import pathlib
import sys

import numpy as np

import fit
from fit.fitting import learning_rate
from results import rows
from results.tuned.rates_sweep import RATES

HERE = pathlib.Path(__file__).parent
RUNS = HERE.parents[1] / "runs" / "tuned"
TABLES = "rates", "recipes"
KEPT = "run n_active n_total n_tokens n_experts d_model n_blocks vocab_size seq_len final_norm n_heads width_per_block \
optimizer parametrization peak_learning_rate seed loss train_loss drop_rate flops validation_tokens corpus_fingerprint \
jax_version device seconds code".split()
WIDTHS, EXPERTS, BASE = (48, 96, 144), (1, 8), 48
RECIPES = tuple(itertools.product(("adamw", "muon"), ("standard", "mup")))
DRAWS, ENDS = 1_000, (10, 90)


def gather() -> None:
    for name in TABLES:
        found = rows.texts(RUNS / name / "runs.csv")
        rows.write(HERE / f"{name}.csv", [{column: row.get(column, "standard") for column in KEPT} for row in found])
        print(f"{name}.csv: {len(found)} runs")


def of(runs, optimizer, parametrization, d_model=None, n_experts=None) -> list[dict]:
    """The runs of a recipe, those of the base width by whatever parametrization."""
    return [
        row
        for row in runs
        if row["optimizer"] == optimizer
        and (row["d_model"] == BASE or row["parametrization"] == parametrization)
        and d_model in (None, row["d_model"])
        and n_experts in (None, row["n_experts"])
    ]


def noise(runs) -> dict[int, float]:
    """By width: the standard deviation of a loss from seed to seed, over all models with several."""
    groups = {}
    for row in runs:
        key = [row[name] for name in ("optimizer", "parametrization", "n_experts", "n_tokens", "peak_learning_rate")]
        groups.setdefault((row["d_model"], *key), []).append(row["loss"])
    several = [(key[0], losses) for key, losses in groups.items() if len(losses) > 1]

    def spread(width):
        return [(np.var(losses) * len(losses), len(losses) - 1) for at, losses in several if at == width]

    return {width: math.sqrt(np.divide(*np.sum(spread(width), axis=0))) for width in WIDTHS}


def best(grid, sigma: float, random) -> dict:
    """The best rate of one model's runs by the parabola through the best run and its neighbours, and its interval when
    each loss is drawn anew by the seeds' noise; the ends of the grid where it lies at one."""
    rate, loss = np.array(sorted((row["peak_learning_rate"], row["loss"]) for row in grid)).T

    def lowest(losses):
        (found,), _ = learning_rate.best_rates(
            fit.read(
                [
                    dict(n_experts=1, n_active=1, n_tokens=1, peak_learning_rate=r, loss=x)
                    for r, x in zip(rate, losses, strict=True)
                ]
            )
        )
        return found

    found = lowest(loss)
    drawn = [lowest(loss + sigma * random.standard_normal(len(loss))).rate for _ in range(DRAWS)]
    return dict(
        rate=found.rate, loss=found.loss, ends=np.percentile(drawn, ENDS), edge=found.at_edge, grid=(rate, loss)
    )


def main() -> None:
    grid, recipes = rows.read(HERE / "rates.csv"), rows.read(HERE / "recipes.csv")
    sigma, random = noise(recipes), np.random.default_rng(0)
    print("seeds: " + ", ".join(f"{sigma[width]:.4f} at width {width}" for width in WIDTHS) + "\n")
    print(
        f"| experts | optimizer | parametrization | {' | '.join(f'width {w}' for w in WIDTHS)} | 144 over 48 | cost |"
    )
    print("|" + "---|" * (5 + len(WIDTHS)))
    found = {}
    for n_experts, recipe in itertools.product(EXPERTS, RECIPES):
        own = [best(of(grid, *recipe, width, n_experts), sigma[width], random) for width in WIDTHS]
        found[n_experts, recipe] = own
        cells = [
            f"{1e3 * one['rate']:.1f}{'*' * one['edge']} ({1e3 * one['ends'][0]:.1f} to {1e3 * one['ends'][1]:.1f})"
            for one in own
        ]
        rates, losses = own[-1]["grid"]
        cost = learning_rate.loss_at(np.log(own[0]["rate"]), np.log(rates), losses) - own[-1]["loss"]
        ratio = f"{own[-1]['rate'] / own[0]['rate']:.2f}"
        print(f"| {' | '.join([f'{n_experts}', *recipe, *cells, ratio, f'{cost:+.4f}'])} |")
    print("\nlosses at the best rates:\n")
    for (n_experts, recipe), own in found.items():
        print(f"| {n_experts} | {' | '.join(recipe)} | {' | '.join(f'''{one['loss']:.4f}''' for one in own)} |")
    for n_experts in EXPERTS:
        saved(recipes, n_experts)
    draw(found)


def saved(recipes, n_experts: int) -> None:
    """How many times Muon's compute AdamW's runs need for Muon's losses: of the same width, by the line through its two
    nearest budgets in ln tokens, where its runs reach that far; and by the law of AdamW's runs, of the best size, for
    both: (of Muon's runs, of AdamW's own)."""
    runs = {name: of(recipes, name, "standard", None, n_experts) for name in ("adamw", "muon")}
    law = fit.law(runs["adamw"], bootstrap=200)
    factors = {name: fit.speedup(law, own).runs for name, own in runs.items()}
    print(f"\nE = {n_experts}; law of AdamW: {law.form.name}\n")

    def mean(name, width, n_tokens, of, values):
        return np.mean(
            [
                v
                for row, v in zip(of[name], values, strict=True)
                if (row["d_model"], row["n_tokens"]) == (width, n_tokens)
            ]
        )

    budgets = sorted({row["n_tokens"] for row in runs["adamw"]})
    for width in WIDTHS:
        loss = {
            name: [mean(name, width, n, runs, [row["loss"] for row in runs[name]]) for n in budgets] for name in runs
        }
        cells = []
        for n, x in zip(budgets, loss["muon"], strict=True):
            reached = x >= loss["adamw"][-1]
            needed = math.exp(np.interp(-x, -np.array(loss["adamw"]), np.log(budgets)))
            by_law = [
                mean(name, width, n, runs, [one["factor"] for one in factors[name]]) for name in ("muon", "adamw")
            ]
            more = f"{needed / n:.2f}" if reached else f"over {needed / n:.2f}" if n < budgets[-1] else ""
            cells.append(f"{x:.3f}, {loss['adamw'][budgets.index(n)]:.3f}: {more} ({by_law[0]:.2f}, {by_law[1]:.2f})")
        print(f"| {n_experts} | {width} | {' | '.join(cells)} |")


def draw(found) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        len(EXPERTS), len(RECIPES), figsize=(10, 5), sharex=True, sharey=True, layout="constrained"
    )
    for (i, n_experts), (j, recipe) in itertools.product(enumerate(EXPERTS), enumerate(RECIPES)):
        for k, (width, one) in enumerate(zip(WIDTHS, found[n_experts, recipe], strict=True)):
            axes[i, j].plot(*one["grid"], marker="o", markersize=3, color=f"C{k}", label=f"width {width}")
            axes[i, j].plot(one["rate"], one["loss"], marker="*", markersize=10, color=f"C{k}")
        axes[i, j].set(xscale="log", title=f"{', '.join(recipe)}, E = {n_experts}")
        axes[i, j].set_xticks(RATES, [f"{1e3 * rate:g}" for rate in RATES])
        axes[i, j].minorticks_off()
    for ax in axes[-1]:
        ax.set_xlabel("peak rate, thousandths")
    for ax in axes[:, 0]:
        ax.set_ylabel("nats per byte")
    axes[0, 0].legend(fontsize="small")
    figure.savefig(HERE / "tuned.png", dpi=100)


if __name__ == "__main__":
    gather() if sys.argv[1:] == ["gather"] else main()
