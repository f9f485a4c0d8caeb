"""What fit next found, in words, and as a sweep file for launch.sweep."""

import ast
from collections.abc import Iterator

from fit.aliases import Json
from fit.errors import UserError
from fit.lawbook.lawcheck import LEVEL
from fit.lawbook.lawfile import Law
from fit.lawbook.models import text_of
from fit.planning import plan_config, planning
from fit.shape.architecture import Architecture
from fit.words.units import amount


def text(found: Json) -> str:
    """What next_runs found, in words."""
    columns = "{:>9} {:>8} {:>7} {:>9} {:>10}  {}"
    lines = [columns.format("n_experts", "d_model", "blocks", "n_active", "FLOPs", "n_tokens")]
    for row in found["trunks"]:
        tokens = ", ".join(map(amount, row["n_tokens"]))
        numbers = row["n_experts"], row["d_model"], row["n_blocks"], amount(row["n_active"]), f"{row['flops']:.3g}"
        lines.append(columns.format(*numbers, tokens))
    n_runs = sum(len(row["n_tokens"]) for row in found["trunks"])
    saved = 1 - found["flops"] / found["flops_one_by_one"]
    lines.append(
        f"{_counted(n_runs, 'run')} on {_counted(len(found['trunks']), 'trunk')}: {found['flops']:.4g} of "
        f"{found['budget']:.4g} FLOPs; sharing trunks saves {saved:.0%}"
    )
    grid = found["grid"]
    lines += ["", f"{'what is expected':32} {'fitted runs':>20} {'and these':>20} {'or a plain grid':>20}"]
    lines += [*_expected(found), ""]
    lines.append(
        f"the plain grid: {_counted(grid['runs'], 'run')} on {_counted(grid['trunks'], 'trunk')}, {grid['flops']:.4g} "
        "FLOPs, evenly spaced in the logarithms of size and tokens, at every number of experts"
    )
    lines.append(f"all of it to first order around the law, by the noise of its runs; intervals hold {LEVEL:.0%}")
    return "\n".join(lines)


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _expected(found: Json) -> Iterator[str]:
    line = lambda what, cells: f"{what:32} " + " ".join(f"{cell:>20}" for cell in cells)
    expected = found["expected"]
    if "coefficients" in expected:
        for row in expected["coefficients"]:
            errors = (f"± {error:.3g}" for error in row["standard_error"].values())
            yield line(f"{row['name']} {row['value']:.4g}", errors)
        return
    ends = [f"{low:.4f} to {high:.4f}" for low, high in expected["loss"].values()]
    yield line(f"loss {expected['best']['loss']:.4f} at {found['target_flops']:.3g} FLOPs", ends)
    for row in expected["others"]:
        what = f"E = {row['n_experts']} above E = {expected['best']['n_experts']}"
        yield line(what, [f"{row['log_loss_above']:.2%} ± {error:.2%}" for error in row["log_error"].values()])


def sweep_source(law: Law, architecture: Architecture, found: Json, base: str | None = None) -> str:
    """A sweep file for launch.sweep with the found trunks. base: a config file to start from instead of the runs' own.

    Raises:
      UserError: nothing says what config the runs had.
    """
    overrides = text_of(law.models)
    if base is None:
        base, overrides = planning.base_config(law, architecture)
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
        for row, own in zip(found["trunks"], built)
    )
    more = ", more" if any(built) else ""
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
        f"MODELS = [  # d_model, blocks, experts, budgets in tokens{', all else' * bool(more)}\n{models}]\n\n\n"
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
