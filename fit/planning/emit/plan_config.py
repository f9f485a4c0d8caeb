"""A training config of a plan's buildable model: Python source that starts from the config of the plan's recipe.

Within the sizes of the law's runs that is their own config: tokenizer, row length, batches, warm-up and law of learning
rates are as they were when the law was fitted, but on chips batches and groups are those that the plan is timed with.
Beyond them it is `configs/pretrain.py`, and rows, batches, warm-up and one peak rate are set as the plan's recipe has
them.
"""

import ast
from collections.abc import Iterable

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law.batches import PAPERS_CONFIG
from fit.fitted_law.extrapolation import warning_of
from fit.fitted_law.law import Law
from fit.fitted_law.models import BUILT
from fit.fitted_law.published_draws import fits_in_words
from fit.messages import sentences
from fit.messages.units import say
from fit.planning.chosen.buildable import Buildable
from fit.planning.chosen.chips_used import ChipsUsed
from fit.planning.chosen.cost import BuildableCost, MeshCost
from fit.planning.emit import base_config, emitted
from fit.planning.emit.base_config import is_same
from fit.planning.inputs.training_chips import nearest_experts_value
from fit.planning.plan import Plan

SHAPE = ("d_model", "n_blocks", "n_heads", "d_ff", "n_experts", "vocab_size")
OF_MIXTURES = ("model.scores", "model.balance")  # that a dense model may not have
# how the paper's models have the fields that a plan of such a model leaves out
PAPERS_SHAPE = dict(n_kv_heads=0, head_dim=0, tied_embeddings=False, top_k=1, d_expert=0)
PAPERS_SHAPE |= dict(n_shared_experts=0, n_dense_blocks=0)
WARMUP = 3  # a run warms up over a third of its tokens at most, as the shortest of the paper does

# Sentences that this file alone says.
CONFIG_MODEL = (
    "{n_experts} experts, {n_active:amount} active and {n_total:amount} total parameters, {n_tokens:amount} tokens; "
    "predicted loss {loss:.4f} nats per token."
)
CONFIG_PLANNED = "Planned by the law {law} under: {given}."
CONFIG_OUTSIDE = "It is {outside}."
CONFIG_LAYOUT = "for {count} x {kind}, a mesh of {data} x {expert} x {model}: fit plan --chips for others"
CONFIG_MICROBATCH = "what {count} x {kind} hold at once"
CONFIG_EXACT = "Exactly {exact_parameters:,} parameters and {exact_training_flops:.4g} training FLOPs."
CONFIG_RATE = "The peak learning rate is {learning_rate:.4e} ({learning_rate_from})."
CONFIG_UNTIMED = "Batches, mesh and remat are those of {base}, not those that the plan was timed with."
CONFIG_RATE_RANGE = "The peak learning rate is {learning_rate:.2e}; {low:.2g} to {high:.2g} by {learning_rate_from}."


def source(law: Law, plan: Plan, base: str | None = None) -> str:
    """The source of the config that trains a plan's buildable model.

    Args:
      law: The law that planned.
      plan: Its plan.
      base: A config file to use instead of the recipe's own. Nothing checks that it serves the model.

    Raises:
      UserError: No model can be built, the law names no config, or the config does not serve the model.
    """
    built = plan.buildable
    if built is None:
        raise UserError(sentences.NOTHING_BUILT)
    base = base_config.of_recipe(law, built) if base is None else base_config.named_by_user(base)
    is_recipes_own = is_same(base, built.recipe.base_config)
    is_pretrain = is_recipes_own and built.recipe.as_published
    import_of_base, get_config = base_config.import_of(base)
    imports = [import_of_base]
    body = [f"config = {get_config}", *_shape(built, is_pretrain)]
    overrides = _overrides(law, built, base)
    if is_pretrain:
        overrides = _overrides_of_text(law, built)
        import_of_text, lines = _published_recipe(law, built)
        imports = ["import math", "", import_of_base, *import_of_text]
        body += lines
    if is_recipes_own and built.layout:
        overrides.pop("batch_tokens", None)  # those of the layout take their place
    for field, value in overrides.items():
        body.append(f"config.{field} = {ast.literal_eval(value)!r}  # as the runs had it")
    body.append(f"config.n_tokens = ({built.n_tokens:_},)")
    if is_recipes_own and plan.chips and built.cost:
        body += _on_chips(built, built.cost, plan.chips)
    if not is_pretrain:
        warmup = f"min(config.optimizer.warmup_tokens, {built.n_tokens // WARMUP:_})"
        body += ["# a third of the run at most", f"config.optimizer.warmup_tokens = {warmup}"]
    if law.tuning and is_recipes_own and not is_pretrain and built.learning_rate:
        imports = ["import math", "", import_of_base]
        body += [f"# {built.learning_rate_from}", *_one_rate(built.learning_rate)]
    body += _predicted(plan, built)
    body.append("return config")
    begin = "\n".join(imports)
    head = f'"""{_docstring(plan, built, base)}"""\n\n{begin}\n\n\ndef get_config():\n'
    return emitted.checked(head + "".join(f"    {line}\n" for line in body), overrides)


def _predicted(plan: Plan, built: Buildable) -> list[str]:
    """Lines with what the law predicts, which the trainer compares the run's end with."""
    lines = ["# the run ends with its loss against this"]
    if built.loss_interval and plan.odds.source:
        lines.append(f"# low and high are of {fits_in_words(plan.odds.source)}")
    lines += ["config.predicted = {", f"    'loss': {built.loss:.6g},"]
    if built.loss_interval and plan.odds.percentiles:
        low, high = built.loss_interval
        first, last = plan.odds.percentiles
        lines += [f"    'low': {low:.6g},", f"    'high': {high:.6g},", f"    'share': {(last - first) / 100:.6g},"]
    lines.append(f"    'law': {plan.law!r},")
    lines.append(f"    'n_active': {built.n_active:_},")
    lines.append(f"    'n_tokens': {built.n_tokens:_},")
    return [*lines, "}"]


def _on_chips(built: Buildable, cost: BuildableCost, chips: ChipsUsed) -> list[str]:
    """Lines that set how the chips share the training, or how many tokens they hold at once."""
    layout = built.layout
    mesh = cost.mesh
    if layout is None or mesh is None:
        lines = []
        if cost.microbatch_tokens:
            lines.append(f"config.microbatch_tokens = {cost.microbatch_tokens:_}  # {say(CONFIG_MICROBATCH, **chips)}")
        return lines if mesh is None else [*lines, *_mesh(mesh)]
    lines = [f"# {say(CONFIG_LAYOUT, **{**chips, **mesh, 'count': chips.n_used})}"]
    if not built.recipe.as_published:  # whose batches are set with the rest of the recipe
        lines.append(f"config.batch_tokens = ({_ramp(layout.ramp)},)")
    lines.append(f"config.microbatch_tokens = {cost.microbatch_tokens or 0:_}")
    lines.append(f"config.model.group_tokens = {mesh.group_tokens:_}")
    return [*lines, *_mesh(mesh)]


def _mesh(mesh: MeshCost) -> list[str]:
    """Lines that set the mesh and the remat."""
    return [
        f"config.mesh.expert = {mesh.expert}",
        f"config.mesh.model = {mesh.model}",
        f"config.remat = {mesh.remat!r}",
    ]


def _one_rate(peak: float | None) -> list[str]:
    """Lines that set the peak learning rate to a number."""
    return [
        f"config.optimizer.lr_law.constant = math.log({peak!r})",
        "config.optimizer.lr_law.n_active = 0.0",
        "config.optimizer.lr_law.n_experts = 0.0",
    ]


def _ramp(batch_tokens: Iterable[Iterable[int]]) -> str:
    """Batches as Python source."""
    return ", ".join(f"({start:_}, {tokens:_})" for start, tokens in batch_tokens)


def _shape(built: Buildable, all_fields: bool) -> list[str]:
    """Lines that set the fields of the model's shape. all_fields: also those that the plan leaves as the paper has
    them, which configs/pretrain.py sets otherwise."""
    fields: Json = {**built}
    if all_fields:
        fields = PAPERS_SHAPE | fields
    return [f"config.model.{name} = {fields[name]}" for name in (*SHAPE, *BUILT) if name in fields]


def _overrides(law: Law, built: Buildable, base: str) -> dict[str, str]:
    """{field: literal} of what the law's runs had on top of their config; with another config than theirs, of their
    text only."""
    overrides = {}
    if is_same(base, built.recipe.base_config):
        overrides = built.recipe.overrides
    elif is_same(base, law.models.base_config):
        overrides = law.models.overrides_with_text
    elif built.vocab_size == law.models.vocab_size:
        overrides = law.models.text_overrides
    if built.n_experts == 1:
        return {field: value for field, value in overrides.items() if field not in OF_MIXTURES}
    return dict(overrides)


def _overrides_of_text(law: Law, built: Buildable) -> dict[str, str]:
    """{field: literal} of the text of the law's runs, but for its rows, where the model has their tokenizer."""
    if not base_config.has_runs_tokenizer(law, built):
        return {}
    overrides = law.models.overrides_with_text
    return {field: overrides[field] for field in overrides if field.startswith("data.") and field != "data.seq_len"}


def _published_recipe(law: Law, built: Buildable) -> tuple[list[str], list[str]]:
    """(imports, lines) that set text, rows, batches, warm-up and the peak rate on top of configs/pretrain.py."""
    imported = []
    lines = []
    if base_config.has_runs_tokenizer(law, built):
        runs = law.models.base_config
        # the paper's tokenizer is that of configs/pretrain.py, and a config from elsewhere runs only where it is named
        if runs is not None and runs != PAPERS_CONFIG and base_config.is_shipped(runs):
            begin, get_config = base_config.import_of(runs, "runs")
            imported.append(begin.removeprefix("import runpy\n\n"))
            lines.append(f"config.data = {get_config}.data  # {sentences.CONFIG_TEXT}")
    elif built.vocab_size >= base_config.GPT2 + base_config.PADDING:
        lines.append("# " + say(sentences.CONFIG_TOKENIZER, **built, known=base_config.GPT2))
    assert built.batch_range and built.learning_rate_range and built.batch_tokens
    low, high = built.batch_range
    batch = say(sentences.CONFIG_BATCH_OF_LAWS, low=low, high=high, source=built.batch_from)
    low, high = built.learning_rate_range
    rate = say(sentences.CONFIG_RATE_OF_LAWS, low=low, high=high, source=built.learning_rate_from)
    lines += [
        f"config.data.seq_len = {built.sequence:_}",
        f"# {batch}",
        f"config.batch_tokens = ({_ramp(built.batch_tokens)},)",
        f"# one peak rate: {rate}",
        *_one_rate(built.learning_rate),
        f"config.optimizer.warmup_tokens = {built.warmup_tokens:_}",
    ]
    return imported, lines


def _docstring(plan: Plan, built: Buildable, base: str) -> str:
    """The docstring of the config: model, plan, what it extrapolates, and where its rate comes from."""
    constraints = dict(plan.constraints)
    if isinstance(constraints.get("flops"), dict):
        constraints["flops"] = nearest_experts_value(constraints["flops"], built.law_experts)
    limits = ", ".join(f"{name} {value:g}" for name, value in constraints.items() if value)
    lines = [say(CONFIG_MODEL, **built), "", say(CONFIG_PLANNED, law=plan.law, given=limits)]
    if built.extrapolation:
        lines.append(say(CONFIG_OUTSIDE, outside=warning_of(built.extrapolation)))
    lines += ["", "    python -m jmoe.train --config=THIS_FILE --workdir=DIR", ""]
    lines.append(say(CONFIG_EXACT, **built))
    if is_same(base, built.recipe.base_config):
        lines += _recipe_lines(built)
    elif built.layout:
        lines.append(say(CONFIG_UNTIMED, base=base))
    return "\n".join(lines).replace("\\", "/").replace('"', "'") + "\n"


def _recipe_lines(built: Buildable) -> list[str]:
    """Sentences on the recipe, and on where its peak learning rate comes from."""
    lines = []
    if built.recipe_note:
        lines.append(built.recipe_note[0].upper() + built.recipe_note[1:] + ".")
    if built.recipe_laws and built.learning_rate_range:
        low, high = built.learning_rate_range
        lines.append(say(CONFIG_RATE_RANGE, **built, low=low, high=high))
    elif built.learning_rate:
        lines.append(say(CONFIG_RATE, **built))
    return lines
