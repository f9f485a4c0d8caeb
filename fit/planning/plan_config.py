"""A training config of a plan's buildable model: Python source that starts from the config of the plan's recipe.

Within the sizes of the law's runs that is their own config: tokenizer, row length, batches, warm-up and law of learning
rates are as they were when the law was fitted. Beyond them it is `configs/pretrain.py`, and rows, batches, warm-up and
one peak rate are set as the plan's recipe has them. Where neither serves the planned model, a UserError says why.
"""

import ast
import os
import pathlib
import re

from fit.aliases import Json
from fit.errors import UserError
from fit.fitted_law import models
from fit.fitted_law.law import Law, load, warning_of
from fit.fitted_law.models import BUILT
from fit.messages import sentences
from fit.messages.units import say
from fit.planning import emitted, recipe
from fit.planning.recipe import PAPERS_LAW

FAR = 100  # times outside the fitted sizes and tokens: there a config tuned within them does not serve
SHAPE = ("d_model", "n_blocks", "n_heads", "d_ff", "n_experts", "vocab_size")
OF_MIXTURES = ("model.scores", "model.balance")  # that a dense model may not have
ROOT = pathlib.Path(__file__).parents[2]
SHIPPED = ROOT, ROOT / "jmoe" / "shipped"  # where configs/ lies in a checkout, and in a wheel
GPT2, PADDING = 50_257, 128  # tokens of the tokenizer of configs/pretrain.py; a vocabulary is padded to a multiple
# how the paper's models have the fields that a plan of such a model leaves out
PAPERS_SHAPE = dict(n_kv_heads=0, head_dim=0, tied_embeddings=False, top_k=1, d_expert=0)
PAPERS_SHAPE |= dict(n_shared_experts=0, n_dense_blocks=0)
WARMUP = 3  # a run warms up over a third of its tokens at most, as the shortest of the paper does


def source(law: Law, plan: Json, base: str | None = None) -> str:
    """The config's source. base: a config file to use instead of the recipe's own; it is not checked to serve the
    model. Raises UserError where no model can be built, the law names no config, or the config does not serve it."""
    built = plan["buildable"]
    if built is None:
        raise UserError(sentences.NOTHING_BUILT)
    if base is None:
        base = plan["base_config"]
        _check(law, built, base)
    elif not os.path.exists(base) and not is_shipped(base):
        raise UserError(f"--base_config={base}: no such file")
    modern = base == plan["base_config"] == recipe.PRETRAIN_CONFIG
    begin, get_config = _start(base)
    body = [f"config = {get_config}", *_shape(built, modern)]
    overrides = _overrides(law, plan, base)
    if modern:
        overrides = _overrides_of_text(law, built)
        imported, lines = _published_recipe(law, built)
        begin = "\n".join(["import math", "", begin, *imported])
        body += lines
    for field, value in overrides.items():
        body.append(f"config.{field} = {ast.literal_eval(value)!r}  # as the runs had it")
    body.append(f"config.n_tokens = ({built['n_tokens']:_},)")
    cost = built.get("cost", {})
    fewer = cost.get("microbatch_tokens")
    chosen = "tokens_at_once" in cost.get("mesh", {})
    if chosen and base == plan["base_config"]:
        body += _layout(plan, modern)
    elif fewer and base == plan["base_config"]:  # the chips hold fewer than the largest batch
        body.append(f"config.microbatch_tokens = {fewer:_}  # {sentences.CONFIG_MICROBATCH.format(**plan['chips'])}")
    if not modern:
        warmup = f"min(config.optimizer.warmup_tokens, {built['n_tokens'] // WARMUP:_})"
        body += ["# a third of the run at most", f"config.optimizer.warmup_tokens = {warmup}"]
    body += _predicted(plan)
    body.append("return config")
    head = f'"""{_docstring(plan, base)}"""\n\n{begin}\n\n\ndef get_config():\n'
    return emitted.checked(head + "".join(f"    {line}\n" for line in body), overrides)


def _predicted(plan: Json) -> list[str]:
    """Lines with what the law predicts, which the trainer compares the run's end with."""
    built = plan["buildable"]
    lines = ["# the run ends with its loss against this", "config.predicted = {", f"    'loss': {built['loss']:.6g},"]
    if built["loss_interval"]:
        (low, high), (first, last) = built["loss_interval"], plan["bootstrap"]["percentiles"]
        lines += [f"    'low': {low:.6g},", f"    'high': {high:.6g},", f"    'share': {(last - first) / 100:.6g},"]
    lines.append(f"    'law': {plan['law']!r},")
    lines += [f"    {name!r}: {built[name]:_}," for name in ("n_active", "n_tokens")]
    return [*lines, "}"]


def _layout(plan: Json, modern: bool) -> list[str]:
    """Lines that set how the chips share the training. modern: whether the batches are set already."""
    built = plan["buildable"]
    cost = built["cost"]
    mesh = cost["mesh"]
    lines = [f"# {say(sentences.CONFIG_LAYOUT, **mesh, **plan['chips'])}"]
    if built["batch_tokens"]:
        if not modern:
            ramp = ", ".join(f"({start:_}, {tokens:_})" for start, tokens in built["batch_tokens"])
            lines.append(f"config.batch_tokens = ({ramp},)")
        lines.append(f"config.microbatch_tokens = {cost['microbatch_tokens'] or 0:_}")
        lines.append(f"config.model.group_tokens = {mesh['group_tokens']:_}")
    lines += [f"config.mesh.{axis} = {mesh[axis]}" for axis in ("expert", "model")]
    return [*lines, f"config.remat = {mesh['remat']!r}"]


def _shape(built: Json, modern: bool) -> list[str]:
    """Lines that set the fields of the model's shape. modern: also those that the plan leaves as the paper has them,
    which configs/pretrain.py sets otherwise."""
    fields = built | dict(n_experts=built.get("routed_experts", built["n_experts"]))
    if modern:
        fields = PAPERS_SHAPE | fields
    return [f"config.model.{name} = {fields[name]}" for name in (*SHAPE, *BUILT) if name in fields]


def _overrides(law: Law, plan: Json, base: str) -> dict[str, str]:
    """{field: literal} of what the law's runs had on top of their config; with another config than theirs, of their
    text only."""
    built = plan["buildable"]
    overrides = {}
    if is_same(base, plan["base_config"]):
        overrides = plan["overrides"]
    elif is_same(base, law.models["base_config"]):
        overrides = models.overrides(law.models)
    elif built["vocab_size"] == law.models["vocab_size"]:
        overrides = models.text_of(law.models)
    return {field: value for field, value in overrides.items() if built["n_experts"] > 1 or field not in OF_MIXTURES}


def _overrides_of_text(law: Law, built: Json) -> dict[str, str]:
    """{field: literal} of the text of the law's runs, but for its rows, where the model has their tokenizer."""
    if not _has_runs_tokenizer(law, built):
        return {}
    overrides = models.overrides(law.models)
    return {field: overrides[field] for field in overrides if field.startswith("data.") and field != "data.seq_len"}


def _published_recipe(law: Law, built: Json) -> tuple[list[str], list[str]]:
    """(imports, lines) that set text, rows, batches, warm-up and the peak rate on top of configs/pretrain.py."""
    imported, lines = [], []
    if _has_runs_tokenizer(law, built):
        runs = law.models["base_config"]
        if runs not in (None, recipe.PAPERS_CONFIG):  # the paper's tokenizer is that of configs/pretrain.py
            begin, get_config = _start(runs, "runs")
            imported.append(begin.removeprefix("import runpy\n\n"))
            lines.append(f"config.data = {get_config}.data  # {sentences.CONFIG_TEXT}")
    elif built["vocab_size"] >= GPT2 + PADDING:
        lines.append("# " + say(sentences.CONFIG_TOKENIZER, **built, known=GPT2))
    low, high = built["batch_range"]
    batch = say(sentences.CONFIG_BATCH_OF_LAWS, low=low, high=high, source=built["batch_from"])
    low, high = built["learning_rate_range"]
    rate = say(sentences.CONFIG_RATE_OF_LAWS, low=low, high=high, source=built["learning_rate_from"])
    ramp = ", ".join(f"({start:_}, {tokens:_})" for start, tokens in built["batch_tokens"])
    lines += [
        f"config.data.seq_len = {built['sequence']:_}",
        f"# {batch}",
        f"config.batch_tokens = ({ramp},)",
        f"# one peak rate: {rate}",
        f"config.optimizer.lr_law.constant = math.log({built['learning_rate']!r})",
        "config.optimizer.lr_law.n_active = 0.0",
        "config.optimizer.lr_law.n_experts = 0.0",
        f"config.optimizer.warmup_tokens = {built['warmup_tokens']:_}",
    ]
    return imported, lines


def _has_runs_tokenizer(law: Law, built: Json) -> bool:
    """Whether the model has the vocabulary of the law's runs, or that padded."""
    known = law.models["vocab_size"]
    return known is not None and known <= built["vocab_size"] < known + PADDING


def _check(law: Law, built: Json, base: str | None) -> None:
    """UserError where the recipe's config `base` cannot serve the model."""
    another = sentences.ANOTHER_CONFIG
    if base is None:
        raise UserError(sentences.OPEN_CONFIG.format(law=law.name, why=no_config(law), another=another))
    if base == recipe.PRETRAIN_CONFIG:
        if built["vocab_size"] < GPT2 and not (_has_runs_tokenizer(law, built) and law.models["base_config"]):
            raise UserError(_other_vocabulary(base, GPT2, built))
        if law.models["base_config"] and not is_shipped(law.models["base_config"]):
            raise UserError(_foreign(law))
        return
    if not is_shipped(base):
        raise UserError(_foreign(law))
    known = law if law.models["base_config"] else load(PAPERS_LAW)
    if not _has_runs_tokenizer(known, built):
        raise UserError(_other_vocabulary(base, known.models["vocab_size"], built))
    far = [
        o
        for o in known.extrapolation(built["n_active"], built["n_tokens"])
        if o["factor"] > FAR and (o["column"] == "n_active" or (o["column"] == "n_tokens" and o["value"] < o["low"]))
    ]
    if far:
        raise UserError(sentences.FAR_FROM_CONFIG.format(outside=warning_of(far), base=base, another=another))


def _other_vocabulary(base: str, known: int, built: Json) -> str:
    return sentences.OTHER_VOCABULARY.format(
        base=base, known=known, asked=built["vocab_size"], another=sentences.ANOTHER_CONFIG
    )


def _foreign(law: Law) -> str:
    return sentences.FOREIGN_CONFIG.format(flag="emit_config", law=law.name, base=law.models["base_config"])


def is_shipped(base: str) -> bool:
    """Whether the config file `base` is one of those that come with this package, written as configs/NAME.py."""
    named = re.fullmatch(r"configs/(\w+/)*\w+\.py", base, re.ASCII)
    return named is not None and any((root / base).exists() for root in SHIPPED)


def is_same(base: str, other: str | None) -> bool:
    """Whether these name one config file; `other` may be None, which is none."""
    return other is not None and os.path.abspath(base) == os.path.abspath(other)


def no_config(law: Law) -> str:
    """Why nothing says what config a law's runs had."""
    several = (law.models["differing"] or {}).get("config")
    if several:
        return sentences.SEVERAL_CONFIGS.format(count=len(several), names=", ".join(several[:4]))
    return sentences.NO_CONFIG


def _start(path: str, name: str = "base") -> tuple[str, str]:
    """(source that imports the config file at `path` under a name, source that calls it)."""
    parts = re.fullmatch(r"((?:[A-Za-z_]\w*/)+)([A-Za-z_]\w*)\.py", path)
    if parts:
        return f"from {parts[1].strip('/').replace('/', '.')} import {parts[2]} as {name}", f"{name}.get_config()"
    return f"import runpy\n\n{name} = runpy.run_path({os.path.abspath(path)!r})", f'{name}["get_config"]()'


def _docstring(plan: Json, base: str) -> str:
    built, given = plan["buildable"], dict(plan["constraints"])
    if isinstance(given.get("flops"), dict):
        given["flops"] = given["flops"][built["n_experts"]]
    given = ", ".join(f"{k} {v:g}" for k, v in given.items() if v)
    lines = [say(sentences.CONFIG_MODEL, **built), "", sentences.CONFIG_PLANNED.format(law=plan["law"], given=given)]
    if built["extrapolation"]:
        lines.append(sentences.CONFIG_OUTSIDE.format(outside=warning_of(built["extrapolation"])))
    lines += ["", "    python -m jmoe.train --config=THIS_FILE --workdir=DIR", ""]
    lines.append(sentences.CONFIG_EXACT.format(**built))
    if built["recipe_note"] and base == plan["base_config"]:
        lines.append(built["recipe_note"][0].upper() + built["recipe_note"][1:] + ".")
    if built["recipe_laws"] and base == plan["base_config"]:
        low, high = built["learning_rate_range"]
        lines.append(say(sentences.CONFIG_RATE_RANGE, **built, low=low, high=high))
    elif built["learning_rate"] and base == plan["base_config"]:
        lines.append(sentences.CONFIG_RATE.format(**built))
    return "\n".join(lines).replace("\\", "/").replace('"', "'") + "\n"
