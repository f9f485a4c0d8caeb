"""The text that `fit next` prints, and its sweep file for launch.sweep."""

import ast

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.fitted_law.models import text_of
from fit.fitted_law.parts import LEVEL
from fit.messages import sentences
from fit.messages.units import amount
from fit.model.architecture import PAPER, Architecture
from fit.planning import plan_config, recipe

STAGES = ("fitted runs", "and these", "or a plain grid")


def text(result: Json) -> str:
    """The tables and notes of a result of next_runs."""
    columns = "{:>9} {:>8} {:>7} {:>9} {:>10}  {}"
    expected = "{:32} {:>20} {:>20} {:>20}"
    lines: list[str] = [columns.format("n_experts", "d_model", "blocks", "n_active", "FLOPs", "n_tokens")]
    lines += [columns.format(*row) for row in trunks(result)]
    lines += [summary(result), "", expected.format("what is expected", *STAGES)]
    lines += [expected.format(*row) for row in certainty(result)]
    return "\n".join([*lines, "", *notes(result)])


def trunks(result: Json) -> list[list]:
    """For each trunk: n_experts, d_model, blocks, n_active, FLOPs, n_tokens."""
    rows = []
    for trunk in result["trunks"]:
        shape = [trunk[name] for name in ("n_experts", "d_model", "n_blocks")]
        tokens = ", ".join(map(amount, trunk["n_tokens"]))
        rows.append([*shape, amount(trunk["n_active"]), f"{trunk['flops']:.3g}", tokens])
    return rows


def summary(result: Json) -> str:
    """A sentence on the total cost of the runs."""
    saved = 1 - result["flops"] / result["flops_one_by_one"]
    return (
        f"{counted(n_runs(result), 'run')} on {counted(len(result['trunks']), 'trunk')}: {result['flops']:.4g} of "
        f"{result['budget']:.4g} FLOPs; sharing trunks saves {saved:.0%}"
    )


def n_runs(result: Json) -> int:
    """How many runs all trunks have together."""
    return sum(len(trunk["n_tokens"]) for trunk in result["trunks"])


def notes(result: Json) -> list[str]:
    """Sentences that explain the plain grid and the figures."""
    grid = result["grid"]
    return [
        f"the plain grid: {counted(grid['runs'], 'run')} on {counted(grid['trunks'], 'trunk')}, {grid['flops']:.4g} "
        "FLOPs, evenly spaced in the logarithms of size and tokens, at every number of experts",
        f"all of it to first order around the law, by the noise of its runs; intervals hold {LEVEL:.0%}",
    ]


def counted(n: int, what: str) -> str:
    """A number with its noun: "1 run", "2 runs"."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def certainty(result: Json) -> list[list[str]]:
    """[[a goal, its error at each of STAGES]]."""
    expected = result["expected"]
    if "coefficients" in expected:
        return [
            [f"{row['name']} {row['value']:.4g}", *(f"± {error:.3g}" for error in row["standard_error"].values())]
            for row in expected["coefficients"]
        ]
    best = expected["best"]
    intervals = [f"{low:.4f} to {high:.4f}" for low, high in expected["loss"].values()]
    rows = [[f"loss {best['loss']:.4f} at {result['target_flops']:.3g} FLOPs", *intervals]]
    for row in expected["others"]:
        gaps = [f"{row['log_loss_above']:.2%} ± {error:.2%}" for error in row["log_error"].values()]
        rows.append([f"E = {row['n_experts']} above E = {best['n_experts']}", *gaps])
    return rows


def sweep_source(law: Law, architecture: Architecture, result: Json, base: str | None = None) -> str:
    """A sweep file for launch.sweep that trains the chosen trunks.

    Args:
      law: whose runs come next.
      architecture: how the models are built.
      result: from next_runs.
      base: a config file to start from instead of the runs' own.

    Raises:
      UserError: where nothing says what config the runs had, or it is none of jmoe's own.
    """
    base, overrides = _config_of_sweep(law, architecture, base)
    shared = "".join(f"    {field!r}: {ast.literal_eval(value)!r},\n" for field, value in overrides.items())
    fields = [architecture.fields(trunk["d_model"], trunk["n_experts"]) for trunk in result["trunks"]]
    models = "".join(_model_line(trunk, more) for trunk, more in zip(result["trunks"], fields, strict=True))
    has_more = any(fields)
    more = ", more" if has_more else ""
    all_else = ", all else" if has_more else ""
    spread = '        | {f"model.{name}": value for name, value in more.items()}\n' if has_more else ""
    law_name = law.name.replace("\\", "/").replace('"', "'")
    return (
        f'"""The runs to train after {law_name}: {n_runs(result)} on {len(result["trunks"])} trunks, '
        f"{result['flops']:.3g} FLOPs.\n\n"
        "python -m launch.sweep --sweep=THIS_FILE --workdir=DIR\n\n"
        "Chosen by fit next. In the workdir of the runs so far, with --mix=config, its runs.csv holds both.\n"
        '"""\n\n'
        f"SEED = {result['seed']}  # that no run so far had\n"
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


def _config_of_sweep(law: Law, architecture: Architecture, base: str | None) -> tuple[str, dict[str, str]]:
    """(config file, overrides) of the sweep. The arguments and errors are those of sweep_source."""
    config_of_runs, overrides = recipe.runs_config(law, architecture == PAPER)
    if base is not None:
        if not plan_config.is_same(base, config_of_runs):
            overrides = text_of(law.models)
        return base, overrides
    if config_of_runs is None:
        raise UserError(
            f"--emit_sweep: --law={law.name} does not say how its runs were trained: {plan_config.no_config(law)}; "
            "name a config by --base_config"
        )
    if not plan_config.is_shipped(config_of_runs):
        raise UserError(sentences.FOREIGN_CONFIG.format(flag="emit_sweep", law=law.name, base=config_of_runs))
    return config_of_runs, overrides


def _model_line(trunk: Json, more: dict[str, int]) -> str:
    """The line of MODELS of a trunk. more: fields of config.model beyond the paper's shape."""
    budgets = ", ".join(f"{n:_}" for n in trunk["n_tokens"])
    fields = f", {more!r}" if more else ""
    return f"    ({trunk['d_model']}, {trunk['n_blocks']}, {trunk['n_experts']}, ({budgets},){fields}),\n"
