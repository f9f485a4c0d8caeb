"""What fit next found, in words, and as a sweep file for launch.sweep."""

import ast

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.fitted_law.law_check import LEVEL
from fit.fitted_law.models import text_of
from fit.messages import sentences
from fit.messages.units import amount
from fit.planning import plan_config, recipe
from fit.shape.architecture import PAPER, Architecture

STAGES = ("fitted runs", "and these", "or a plain grid")


def text(found: Json) -> str:
    """What next_runs found, in words."""
    columns, expected = "{:>9} {:>8} {:>7} {:>9} {:>10}  {}", "{:32} {:>20} {:>20} {:>20}"
    lines: list[str] = [columns.format("n_experts", "d_model", "blocks", "n_active", "FLOPs", "n_tokens")]
    lines += [columns.format(*row) for row in trunks(found)]
    lines += [summary(found), "", expected.format("what is expected", *STAGES)]
    lines += [expected.format(*row) for row in certainty(found)]
    return "\n".join([*lines, "", *notes(found)])


def trunks(found: Json) -> list[list]:
    """For each trunk: n_experts, d_model, blocks, n_active, FLOPs, n_tokens."""
    names = "n_experts", "d_model", "n_blocks"
    rows = []
    for trunk in found["trunks"]:
        tokens = ", ".join(map(amount, trunk["n_tokens"]))
        rows.append([*(trunk[name] for name in names), amount(trunk["n_active"]), f"{trunk['flops']:.3g}", tokens])
    return rows


def summary(found: Json) -> str:
    """What the runs cost together, in a sentence."""
    n_runs = sum(len(row["n_tokens"]) for row in found["trunks"])
    saved = 1 - found["flops"] / found["flops_one_by_one"]
    return (
        f"{_counted(n_runs, 'run')} on {_counted(len(found['trunks']), 'trunk')}: {found['flops']:.4g} of "
        f"{found['budget']:.4g} FLOPs; sharing trunks saves {saved:.0%}"
    )


def notes(found: Json) -> list[str]:
    """What the plain grid is, and what the figures hold."""
    grid = found["grid"]
    return [
        f"the plain grid: {_counted(grid['runs'], 'run')} on {_counted(grid['trunks'], 'trunk')}, {grid['flops']:.4g} "
        "FLOPs, evenly spaced in the logarithms of size and tokens, at every number of experts",
        f"all of it to first order around the law, by the noise of its runs; intervals hold {LEVEL:.0%}",
    ]


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def certainty(found: Json) -> list[list[str]]:
    """[[what is expected, how sure at each of STAGES]]."""
    expected = found["expected"]
    if "coefficients" in expected:
        return [
            [f"{row['name']} {row['value']:.4g}", *(f"± {error:.3g}" for error in row["standard_error"].values())]
            for row in expected["coefficients"]
        ]
    best = expected["best"]
    ends = [f"{low:.4f} to {high:.4f}" for low, high in expected["loss"].values()]
    rows = [[f"loss {best['loss']:.4f} at {found['target_flops']:.3g} FLOPs", *ends]]
    for row in expected["others"]:
        above = [f"{row['log_loss_above']:.2%} ± {error:.2%}" for error in row["log_error"].values()]
        rows.append([f"E = {row['n_experts']} above E = {best['n_experts']}", *above])
    return rows


def sweep_source(law: Law, architecture: Architecture, found: Json, base: str | None = None) -> str:
    """A sweep file for launch.sweep with the found trunks. base: a config file to start from instead of the runs' own.
    Raises UserError where nothing says what config the runs had."""
    own, of_runs = recipe.runs_config(law, architecture == PAPER)
    if base is None and own is not None and not plan_config.is_shipped(own):
        raise UserError(sentences.FOREIGN_CONFIG.format(flag="emit_sweep", law=law.name, base=own))
    overrides = of_runs if base is None or plan_config.is_same(base, own) else text_of(law.models)
    base = base or own
    if base is None:
        raise UserError(
            f"--emit_sweep: --law={law.name} leaves open how its runs were trained: {plan_config.no_config(law)}; "
            "name a config that serves by --base_config"
        )
    shared = "".join(f"    {field!r}: {ast.literal_eval(value)!r},\n" for field, value in overrides.items())
    built = [architecture.fields(row["d_model"], row["n_experts"]) for row in found["trunks"]]
    models = "".join(
        f"    ({row['d_model']}, {row['n_blocks']}, {row['n_experts']}, "
        f"({', '.join(f'{n:_}' for n in row['n_tokens'])},){f', {own!r}' if own else ''}),\n"
        for row, own in zip(found["trunks"], built, strict=True)
    )
    more = ", more" if any(built) else ""
    all_else = ", all else" if more else ""
    spread = '        | {f"model.{name}": value for name, value in more.items()}\n' if more else ""
    n_runs, n_trunks = sum(len(row["n_tokens"]) for row in found["trunks"]), len(found["trunks"])
    where = law.name.replace("\\", "/").replace('"', "'")
    return (
        f'"""The runs to train after {where}: {n_runs} on {n_trunks} trunks, {found["flops"]:.3g} FLOPs.\n\n'
        "python -m launch.sweep --sweep=THIS_FILE --workdir=DIR\n\n"
        "Chosen by fit next. In the workdir of the runs so far, with --mix=config, its runs.csv holds both.\n"
        '"""\n\n'
        f"SEED = {found['seed']}  # that no run so far had\n"
        f"SHARED = {{\n{shared}}}  # as the runs so far had it\n"
        f"MODELS = [  # d_model, blocks, experts, budgets in tokens{all_else}\n{models}]\n\n\n"
        "def get_sweep():\n"
        '    """(config file, one dict of overrides for each trunk)."""\n'
        f"    return {base!r}, [\n"
        "        SHARED\n"
        "        | {\n"
        '            "model.d_model": d_model,\n'
        '            "model.n_blocks": n_blocks,\n'
        '            "model.n_experts": n_experts,\n'
        '            "n_tokens": n_tokens,\n'
        '            "seed": SEED,\n'
        f"        }}\n{spread}"
        f"        for d_model, n_blocks, n_experts, n_tokens{more} in MODELS\n"
        "    ]\n"
    )
