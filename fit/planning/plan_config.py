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
from fit.planning.planning import PAPERS_LAW
from fit.words import sentences
from fit.words.units import amount

FAR = 100  # times outside the fitted sizes and tokens: there a config tuned within them does not serve
SHAPE = ("d_model", "n_blocks", "n_heads", "d_ff", "n_experts", "vocab_size")
OF_MIXTURES = ("model.scores", "model.balance")  # that a dense model may not have
ROOT = pathlib.Path(__file__).parents[2]
SHIPPED = ROOT, ROOT / "jmoe" / "shipped"  # where configs/ lies in a checkout, and in a wheel
WARMUP = 3  # a run warms up over a third of its tokens at most, as the shortest of the paper does


def source(law: Law, plan: Json, base: str | None = None) -> str:
    """The config's source. base: a config file to use instead of the runs' own; it is not checked to serve the model.

    Raises:
      UserError: no model can be built, the law names no config, or the runs' config does not serve this model.
    """
    built = plan["buildable"]
    if built is None:
        raise UserError(sentences.NOTHING_BUILT)
    overrides = models.text_of(law.models) if built["vocab_size"] == law.models["vocab_size"] else {}
    if base is None:
        base, overrides = plan["base_config"], plan["overrides"]
        _check(law, built, base)
    elif not os.path.exists(base) and not (
        base.startswith("configs/") and any((root / base).exists() for root in SHIPPED)
    ):
        raise UserError(f"--base_config={base}: no such file")
    begin, get_config = _start(base)
    as_run = [
        f"    config.{field} = {ast.literal_eval(value)!r}  # as the runs had it\n"
        for field, value in overrides.items()
        if built["n_experts"] > 1 or field not in OF_MIXTURES
    ]
    warmup = built["n_tokens"] // WARMUP
    return (
        f'"""{_docstring(plan, base)}"""\n\n{begin}\n\n\ndef get_config():\n    config = {get_config}\n'
        + "".join(f"    config.model.{name} = {value}\n" for name, value in _fields(built).items())
        + "".join(as_run)
        + f"    config.n_tokens = ({built['n_tokens']:_},)\n"
        + _microbatch(plan, base)
        + "    # a third of the run at most\n"
        + f"    config.optimizer.warmup_tokens = min(config.optimizer.warmup_tokens, {warmup:_})\n"
        + "    return config\n"
    )


def _fields(built: Json) -> Json:
    """{field of config.model: value}."""
    routed = dict(n_experts=built.get("routed_experts", built["n_experts"]))
    return {name: (built | routed)[name] for name in (*SHAPE, *BUILT) if name in built}


def _microbatch(plan: Json, base: str) -> str:
    """The line that says how many tokens the chips hold at once, where they do not hold the largest batch."""
    fewer = (plan["buildable"].get("cost") or {}).get("microbatch_tokens")
    if not fewer or base != plan["base_config"]:
        return ""
    return f"    config.microbatch_tokens = {fewer:_}  # {sentences.CONFIG_MICROBATCH.format(**plan['chips'])}\n"


def _check(law: Law, built: Json, base: str | None) -> None:
    """UserError where the runs' config `base` cannot serve the model."""
    another = sentences.ANOTHER_CONFIG
    if base is None:
        raise UserError(sentences.OPEN_CONFIG.format(law=law.name, why=no_config(law), another=another))
    known = law if law.models["base_config"] else load(PAPERS_LAW)
    vocabulary = known.models["vocab_size"]
    if built["vocab_size"] != vocabulary:
        raise UserError(
            sentences.OTHER_VOCABULARY.format(base=base, known=vocabulary, asked=built["vocab_size"], another=another)
        )
    outside = known.extrapolation(built["n_active"], built["n_tokens"])
    far = [
        o
        for o in outside
        if o["factor"] > FAR and (o["column"] == "n_active" or (o["column"] == "n_tokens" and o["value"] < o["low"]))
    ]
    if far:
        raise UserError(sentences.FAR_FROM_CONFIG.format(outside=warning_of(far), base=base, another=another))


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
    built = plan["buildable"]
    given = dict(plan["constraints"])
    if isinstance(given.get("flops"), dict):
        given["flops"] = given["flops"][built["n_experts"]]
    given = ", ".join(f"{k} {v:g}" for k, v in given.items() if v)
    rate = built["learning_rate"]
    lines = [
        sentences.CONFIG_MODEL.format(
            e=built["n_experts"],
            active=amount(built["n_active"]),
            total=amount(built["n_total"]),
            tokens=amount(built["n_tokens"]),
            loss=built["loss"],
        )
        + "\n",
        sentences.CONFIG_PLANNED.format(law=plan["law"], given=given),
    ]
    if built["extrapolation"]:
        lines.append(sentences.CONFIG_OUTSIDE.format(outside=warning_of(built["extrapolation"])))
    lines += [
        "\n    python -m jmoe.train --config=THIS_FILE --workdir=DIR\n",
        sentences.CONFIG_EXACT.format(**built),
    ]
    if rate and base == plan["base_config"]:
        lines.append(sentences.CONFIG_RATE.format(**built))
    return "\n".join(lines).replace("\\", "/").replace('"', "'") + "\n"
