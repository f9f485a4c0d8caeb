"""A training config of a plan's buildable model: Python source that starts from the config of the runs behind the law.

Tokenizer, row length, batches, warm-up and law of learning rates are that config's, so they are as they were when the
law was fitted. Where they would not serve the planned model, a UserError says why.
"""

import ast
import os
import pathlib
import re

from fit.aliases import Json
from fit.errors import UserError
from fit.lawbook import models
from fit.lawbook.lawfile import Law, load, warning_of
from fit.lawbook.models import BUILT
from fit.planning import emitted
from fit.planning.planning import PAPERS_LAW
from fit.words import sentences
from fit.words.units import say

FAR = 100  # times outside the fitted sizes and tokens: there a config tuned within them does not serve
SHAPE = ("d_model", "n_blocks", "n_heads", "d_ff", "n_experts", "vocab_size")
OF_MIXTURES = ("model.scores", "model.balance")  # that a dense model may not have
ROOT = pathlib.Path(__file__).parents[2]
SHIPPED = ROOT, ROOT / "jmoe" / "shipped"  # where configs/ lies in a checkout, and in a wheel
WARMUP = 3  # a run warms up over a third of its tokens at most, as the shortest of the paper does


def source(law: Law, plan: Json, base: str | None = None) -> str:
    """The config's source. base: a config file to use instead of the runs' own; it is not checked to serve the model.
    Raises UserError where no model can be built, the law names no config, or the runs' config does not serve it."""
    built = plan["buildable"]
    if built is None:
        raise UserError(sentences.NOTHING_BUILT)
    overrides = models.text_of(law.models) if built["vocab_size"] == law.models["vocab_size"] else {}
    if base is not None and is_same(base, plan["base_config"]):
        overrides = plan["overrides"]
    if base is None:
        base, overrides = plan["base_config"], plan["overrides"]
        _check(law, built, base)
    elif not os.path.exists(base) and not is_shipped(base):
        raise UserError(f"--base_config={base}: no such file")
    begin, get_config = _start(base)
    routed = built | dict(n_experts=built.get("routed_experts", built["n_experts"]))
    body = [f"config = {get_config}"]
    body += [f"config.model.{name} = {routed[name]}" for name in (*SHAPE, *BUILT) if name in built]
    body += [
        f"config.{field} = {ast.literal_eval(value)!r}  # as the runs had it"
        for field, value in overrides.items()
        if built["n_experts"] > 1 or field not in OF_MIXTURES
    ]
    body.append(f"config.n_tokens = ({built['n_tokens']:_},)")
    fewer = built.get("cost", {}).get("microbatch_tokens")
    if fewer and base == plan["base_config"]:  # the chips hold fewer than the largest batch
        body.append(f"config.microbatch_tokens = {fewer:_}  # {sentences.CONFIG_MICROBATCH.format(**plan['chips'])}")
    warmup = f"min(config.optimizer.warmup_tokens, {built['n_tokens'] // WARMUP:_})"
    body += ["# a third of the run at most", f"config.optimizer.warmup_tokens = {warmup}", "return config"]
    head = f'"""{_docstring(plan, base)}"""\n\n{begin}\n\n\ndef get_config():\n'
    written = {field: value for field, value in overrides.items() if built["n_experts"] > 1 or field not in OF_MIXTURES}
    return emitted.checked(head + "".join(f"    {line}\n" for line in body), written)


def _check(law: Law, built: Json, base: str | None) -> None:
    """UserError where the runs' config `base` cannot serve the model."""
    another = sentences.ANOTHER_CONFIG
    if base is None:
        raise UserError(sentences.OPEN_CONFIG.format(law=law.name, why=no_config(law), another=another))
    if not is_shipped(base):
        raise UserError(sentences.FOREIGN_CONFIG.format(flag="emit_config", law=law.name, base=base))
    known = law if law.models["base_config"] else load(PAPERS_LAW)
    vocabulary = known.models["vocab_size"]
    if built["vocab_size"] != vocabulary:
        raise UserError(
            sentences.OTHER_VOCABULARY.format(base=base, known=vocabulary, asked=built["vocab_size"], another=another)
        )
    far = [
        o
        for o in known.extrapolation(built["n_active"], built["n_tokens"])
        if o["factor"] > FAR and (o["column"] == "n_active" or (o["column"] == "n_tokens" and o["value"] < o["low"]))
    ]
    if far:
        raise UserError(sentences.FAR_FROM_CONFIG.format(outside=warning_of(far), base=base, another=another))


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


def _start(base: str) -> tuple[str, str]:
    """(source that imports the config file `base`, source that calls it)."""
    parts = re.fullmatch(r"((?:[A-Za-z_]\w*/)+)([A-Za-z_]\w*)\.py", base)
    if parts:
        return f"from {parts[1].strip('/').replace('/', '.')} import {parts[2]} as base", "base.get_config()"
    return f"import runpy\n\nbase = runpy.run_path({os.path.abspath(base)!r})", 'base["get_config"]()'


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
    if built["learning_rate"] and base == plan["base_config"]:
        lines.append(sentences.CONFIG_RATE.format(**built))
    return "\n".join(lines).replace("\\", "/").replace('"', "'") + "\n"
