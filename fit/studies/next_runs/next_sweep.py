"""The sweep file of the runs to train next, for launch.sweep."""

import ast

from fit.errors import UserError
from fit.fitted_law.law import Law
from fit.messages import sentences
from fit.messages.units import say
from fit.model.architecture import PAPER, Architecture
from fit.planning.emit import base_config
from fit.planning.recipe import which_recipe
from fit.studies.next_runs import next_answer
from fit.studies.next_runs.results import NextRuns, Trunk


def sweep_source(law: Law, architecture: Architecture, result: NextRuns, base: str | None = None) -> str:
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
    fields = [architecture.fields(trunk.d_model, trunk.n_experts) for trunk in result.trunks]
    models = "".join(_model_line(trunk, more) for trunk, more in zip(result.trunks, fields, strict=True))
    has_more = any(fields)
    more = ", more" if has_more else ""
    all_else = ", all else" if has_more else ""
    spread = '        | {f"model.{name}": value for name, value in more.items()}\n' if has_more else ""
    law_name = law.name.replace("\\", "/").replace('"', "'")
    return (
        f'"""The runs to train after {law_name}: {next_answer.n_runs(result)} on {len(result.trunks)} trunks, '
        f"{result.flops:.3g} FLOPs.\n\n"
        "python -m launch.sweep --sweep=THIS_FILE --workdir=DIR\n\n"
        "Chosen by fit next. In the workdir of the runs so far, with --mix=config, its runs.csv holds both.\n"
        '"""\n\n'
        f"SEED = {result.seed}  # that no run so far had\n"
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
    config_of_runs, overrides = which_recipe.runs_config(law, architecture == PAPER)
    if base is not None:
        if not base_config.is_same(base, config_of_runs):
            overrides = law.models.text_overrides
        return base, overrides
    if config_of_runs is None:
        raise UserError(
            f"--emit_sweep: --law={law.name} does not say how its runs were trained: {base_config.no_config(law)}; "
            "name a config by --base_config"
        )
    if not base_config.is_shipped(config_of_runs):
        raise UserError(say(sentences.FOREIGN_CONFIG, flag="emit_sweep", law=law.name, base=config_of_runs))
    return config_of_runs, overrides


def _model_line(trunk: Trunk, more: dict[str, int]) -> str:
    """The line of MODELS of a trunk. more: fields of config.model beyond the paper's shape."""
    budgets = ", ".join(f"{n:_}" for n in trunk.n_tokens)
    fields = f", {more!r}" if more else ""
    return f"    ({trunk.d_model}, {trunk.n_blocks}, {trunk.n_experts}, ({budgets},){fields}),\n"
