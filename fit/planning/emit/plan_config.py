"""A training config of a plan's buildable model: Python source that starts from the config of the plan's recipe.

Within the sizes of the law's runs that is their own config: tokenizer, row length, batches, warm-up and law of learning
rates are as they were when the law was fitted, but on chips batches and groups are those that the plan is timed with.
Beyond them it is `configs/pretrain.py`, and rows, batches, warm-up and one peak rate are set as the plan's recipe has
them. Where neither serves the planned model, a UserError says why.
"""

import ast
import os
import pathlib
import re
from collections.abc import Iterable

from fit.errors import UserError
from fit.fitted_law import extrapolation
from fit.fitted_law.extrapolation import Outside, warning_of
from fit.fitted_law.law import Law
from fit.fitted_law.law_files import load
from fit.fitted_law.models import BUILT
from fit.fitted_law.published_draws import fits_in_words
from fit.messages import sentences
from fit.messages.units import say
from fit.planning.chosen.buildable import Buildable
from fit.planning.chosen.chips_used import ChipsUsed
from fit.planning.chosen.cost import BuildableCost, MeshCost
from fit.planning.emit import emitted
from fit.planning.inputs.training_chips import nearest_experts_value
from fit.planning.plan import Plan
from fit.planning.recipe import which_recipe
from fit.planning.recipe.recipe import PAPERS_LAW

FAR = 100  # times outside the fitted sizes and tokens: there a config tuned within them does not serve
SHAPE = ("d_model", "n_blocks", "n_heads", "d_ff", "n_experts", "vocab_size")
OF_MIXTURES = ("model.scores", "model.balance")  # that a dense model may not have
ROOT = pathlib.Path(__file__).parents[3]
SHIPPED = ROOT, ROOT / "jmoe" / "shipped"  # where configs/ lies in a checkout, and in a wheel
GPT2 = 50_257  # tokens of the tokenizer of configs/pretrain.py
PADDING = 128  # a vocabulary is padded to a multiple of this
# how the paper's models have the fields that a plan of such a model leaves out
PAPERS_SHAPE = dict(n_kv_heads=0, head_dim=0, tied_embeddings=False, top_k=1, d_expert=0)
PAPERS_SHAPE |= dict(n_shared_experts=0, n_dense_blocks=0)
WARMUP = 3  # a run warms up over a third of its tokens at most, as the shortest of the paper does

# Sentences that this file alone says.
SEVERAL_CONFIGS = "its runs had {count} configs: {names}"
NO_CONFIG = "it names no config"
OTHER_VOCABULARY = (
    "--emit_config: the tokenizer of {base} goes with a vocabulary of {known:,}, the model has {asked:,}{another}"
)
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
    if base is None:
        base = _checked_config(law, built, plan.base_config)
    elif not os.path.exists(base) and not is_shipped(base):
        raise UserError(f"--base_config={base}: no such file")
    is_recipes_own = is_same(base, plan.base_config)
    is_pretrain = is_recipes_own and built.as_published
    begin, get_config = _start(base)
    body = [f"config = {get_config}", *_shape(built, is_pretrain)]
    overrides = _overrides(law, plan, built, base)
    if is_pretrain:
        overrides = _overrides_of_text(law, built)
        imported, lines = _published_recipe(law, built)
        begin = "\n".join(["import math", "", begin, *imported])
        body += lines
    if is_recipes_own and built.layout:
        overrides.pop("batch_tokens", None)  # those of the layout take their place
    for field, value in overrides.items():
        body.append(f"config.{field} = {ast.literal_eval(value)!r}  # as the runs had it")
    body.append(f"config.n_tokens = ({built.n_tokens:_},)")
    if is_recipes_own and plan.chips and built.cost:
        body += _on_chips(built, built.cost, plan.chips, is_pretrain)
    if not is_pretrain:
        warmup = f"min(config.optimizer.warmup_tokens, {built.n_tokens // WARMUP:_})"
        body += ["# a third of the run at most", f"config.optimizer.warmup_tokens = {warmup}"]
    if law.tuning and is_recipes_own and not is_pretrain and built.learning_rate:
        begin = f"import math\n\n{begin}"
        body += [f"# {built.learning_rate_from}", *_one_rate(built.learning_rate)]
    body += _predicted(plan, built)
    body.append("return config")
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


def _on_chips(built: Buildable, cost: BuildableCost, chips: ChipsUsed, has_batches: bool) -> list[str]:
    """Lines that set how the chips share the training, or how many tokens they hold at once.

    has_batches: whether other lines set the batches.
    """
    layout = built.layout
    mesh = cost.mesh
    if layout is None or mesh is None:
        lines = []
        if cost.microbatch_tokens:
            lines.append(f"config.microbatch_tokens = {cost.microbatch_tokens:_}  # {say(CONFIG_MICROBATCH, **chips)}")
        return lines if mesh is None else [*lines, *_mesh(mesh)]
    lines = [f"# {say(CONFIG_LAYOUT, **{**chips, **mesh, 'count': chips.n_used})}"]
    if not has_batches:
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
    fields = {**built, "n_experts": built.experts_of_trainer}
    if all_fields:
        fields = PAPERS_SHAPE | fields
    return [f"config.model.{name} = {fields[name]}" for name in (*SHAPE, *BUILT) if name in fields]


def _overrides(law: Law, plan: Plan, built: Buildable, base: str) -> dict[str, str]:
    """{field: literal} of what the law's runs had on top of their config; with another config than theirs, of their
    text only."""
    overrides = {}
    if is_same(base, plan.base_config):
        overrides = plan.overrides
    elif is_same(base, law.models.base_config):
        overrides = law.models.overrides_with_text
    elif built.vocab_size == law.models.vocab_size:
        overrides = law.models.text_overrides
    if built.n_experts == 1:
        return {field: value for field, value in overrides.items() if field not in OF_MIXTURES}
    return dict(overrides)


def _overrides_of_text(law: Law, built: Buildable) -> dict[str, str]:
    """{field: literal} of the text of the law's runs, but for its rows, where the model has their tokenizer."""
    if not _has_runs_tokenizer(law, built):
        return {}
    overrides = law.models.overrides_with_text
    return {field: overrides[field] for field in overrides if field.startswith("data.") and field != "data.seq_len"}


def _published_recipe(law: Law, built: Buildable) -> tuple[list[str], list[str]]:
    """(imports, lines) that set text, rows, batches, warm-up and the peak rate on top of configs/pretrain.py."""
    imported = []
    lines = []
    if _has_runs_tokenizer(law, built):
        runs = law.models.base_config
        # the paper's tokenizer is that of configs/pretrain.py, and a config from elsewhere runs only where it is named
        if runs is not None and runs != which_recipe.PAPERS_CONFIG and is_shipped(runs):
            begin, get_config = _start(runs, "runs")
            imported.append(begin.removeprefix("import runpy\n\n"))
            lines.append(f"config.data = {get_config}.data  # {sentences.CONFIG_TEXT}")
    elif built.vocab_size >= GPT2 + PADDING:
        lines.append("# " + say(sentences.CONFIG_TOKENIZER, **built, known=GPT2))
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


def _has_runs_tokenizer(law: Law, built: Buildable) -> bool:
    """Whether the model has the vocabulary of the law's runs, or that padded."""
    known = law.models.vocab_size
    return known is not None and known <= built.vocab_size < known + PADDING


def _checked_config(law: Law, built: Buildable, base: str | None) -> str:
    """The recipe's config. Raises UserError where there is none, or it cannot serve the model."""
    another = sentences.ANOTHER_CONFIG
    if base is None:
        raise UserError(sentences.OPEN_CONFIG.format(law=law.name, why=no_config(law), another=another))
    of_runs = law.models.base_config
    if base == which_recipe.PRETRAIN_CONFIG:
        if built.vocab_size < GPT2 and not (_has_runs_tokenizer(law, built) and of_runs):
            raise UserError(_other_vocabulary(base, GPT2, built))
        if of_runs and not is_shipped(of_runs):
            raise UserError(_foreign(law))
        return base
    if not is_shipped(base):
        raise UserError(_foreign(law))
    tuned_for = law if of_runs else load(PAPERS_LAW)
    if not _has_runs_tokenizer(tuned_for, built):
        raise UserError(_other_vocabulary(base, tuned_for.models.vocab_size, built))
    outside = extrapolation.outside(tuned_for, n_active=built.n_active, n_tokens=built.n_tokens)
    far = [value for value in outside if _is_far_from_config(value)]
    if far:
        raise UserError(sentences.FAR_FROM_CONFIG.format(outside=warning_of(far), base=base, another=another))
    return base


def _is_far_from_config(value: Outside) -> bool:
    """Whether a value outside the fitted range is one that a config tuned within it does not serve: another size, or
    fewer tokens."""
    if value.factor is None or value.factor <= FAR:
        return False
    if value.column == "n_tokens":
        return not value.is_above
    return value.column == "n_active"


def _other_vocabulary(base: str, known: int | None, built: Buildable) -> str:
    """The sentence on a config whose tokenizer has `known` tokens, and a model with another vocabulary."""
    return say(OTHER_VOCABULARY, base=base, known=known, asked=built.vocab_size, another=sentences.ANOTHER_CONFIG)


def _foreign(law: Law) -> str:
    """The sentence on a law whose runs had a config that does not come with this package."""
    return say(sentences.FOREIGN_CONFIG, flag="emit_config", law=law.name, base=law.models.base_config)


def is_shipped(base: str) -> bool:
    """Whether the config file `base` is one of those that come with this package, written as configs/NAME.py."""
    named = re.fullmatch(r"configs/(\w+/)*\w+\.py", base, re.ASCII)
    return named is not None and any((root / base).exists() for root in SHIPPED)


def is_same(base: str, other: str | None) -> bool:
    """Whether these name one config file; `other` may be None, which is none."""
    return other is not None and os.path.abspath(base) == os.path.abspath(other)


def no_config(law: Law) -> str:
    """Why nothing says what config a law's runs had."""
    several = law.models.differing.get("config")
    if several:
        return say(SEVERAL_CONFIGS, count=len(several), names=", ".join(map(str, several[:4])))
    return NO_CONFIG


def _start(path: str, name: str = "base") -> tuple[str, str]:
    """(source that imports the config file at `path` under a name, source that calls it)."""
    parts = re.fullmatch(r"((?:[A-Za-z_]\w*/)+)([A-Za-z_]\w*)\.py", path)
    if parts:
        return f"from {parts[1].strip('/').replace('/', '.')} import {parts[2]} as {name}", f"{name}.get_config()"
    return f"import runpy\n\n{name} = runpy.run_path({os.path.abspath(path)!r})", f'{name}["get_config"]()'


def _docstring(plan: Plan, built: Buildable, base: str) -> str:
    """The docstring of the config: model, plan, what it extrapolates, and where its rate comes from."""
    constraints = dict(plan.constraints)
    if isinstance(constraints.get("flops"), dict):
        constraints["flops"] = nearest_experts_value(constraints["flops"], built.experts_of_law)
    limits = ", ".join(f"{name} {value:g}" for name, value in constraints.items() if value)
    lines = [say(CONFIG_MODEL, **built), "", say(CONFIG_PLANNED, law=plan.law, given=limits)]
    if built.extrapolation:
        lines.append(say(CONFIG_OUTSIDE, outside=warning_of(built.extrapolation)))
    lines += ["", "    python -m jmoe.train --config=THIS_FILE --workdir=DIR", ""]
    lines.append(say(CONFIG_EXACT, **built))
    if is_same(base, plan.base_config):
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
