"""The config file that an emitted config starts from: whether one serves the planned model, and how it is imported."""

import os
import pathlib
import re

from fit.errors import UserError
from fit.fitted_law import extrapolation
from fit.fitted_law.extrapolation import Outside, warning_of
from fit.fitted_law.law import Law
from fit.fitted_law.law_files import load
from fit.messages import sentences
from fit.messages.units import say
from fit.planning.chosen.buildable import Buildable
from fit.planning.recipe.runs_recipe import PAPERS_LAW
from fit.planning.recipe.which_recipe import PRETRAIN_CONFIG

FAR = 100  # times outside the fitted sizes and tokens: there a config tuned within them does not serve
ROOT = pathlib.Path(__file__).parents[3]
SHIPPED = ROOT, ROOT / "jmoe" / "shipped"  # where configs/ lies in a checkout, and in a wheel
GPT2 = 50_257  # tokens of the tokenizer of configs/pretrain.py
PADDING = 128  # a vocabulary is padded to a multiple of this

# Sentences that this file alone says.
SEVERAL_CONFIGS = "its runs had {count} configs: {names}"
NO_CONFIG = "it names no config"
OTHER_VOCABULARY = (
    "--emit_config: the tokenizer of {base} goes with a vocabulary of {known:,}, the model has {asked:,}{another}"
)


def of_recipe(law: Law, built: Buildable) -> str:
    """The config of the recipe of the model to build.

    Raises:
      UserError: There is none, or it cannot serve the model.
    """
    base = built.recipe.base_config
    another = sentences.ANOTHER_CONFIG
    if base is None:
        raise UserError(sentences.OPEN_CONFIG.format(law=law.name, why=no_config(law), another=another))
    of_runs = law.models.base_config
    if base == PRETRAIN_CONFIG:
        if built.vocab_size < GPT2 and not (has_runs_tokenizer(law, built) and of_runs):
            raise UserError(_other_vocabulary(base, GPT2, built))
        if of_runs and not is_shipped(of_runs):
            raise UserError(_foreign(law))
        return base
    if not is_shipped(base):
        raise UserError(_foreign(law))
    tuned_for = law if of_runs else load(PAPERS_LAW)
    if not has_runs_tokenizer(tuned_for, built):
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


def named_by_user(base: str) -> str:
    """The config of --base_config. Nothing checks that it serves the model.

    Raises:
      UserError: There is no such file.
    """
    if not os.path.exists(base) and not is_shipped(base):
        raise UserError(f"--base_config={base}: no such file")
    return base


def has_runs_tokenizer(law: Law, built: Buildable) -> bool:
    """Whether the model has the vocabulary of the law's runs, or that padded."""
    known = law.models.vocab_size
    return known is not None and known <= built.vocab_size < known + PADDING


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


def import_of(path: str, name: str = "base") -> tuple[str, str]:
    """(source that imports the config file at `path` under a name, source that calls it)."""
    parts = re.fullmatch(r"((?:[A-Za-z_]\w*/)+)([A-Za-z_]\w*)\.py", path)
    if parts:
        return f"from {parts[1].strip('/').replace('/', '.')} import {parts[2]} as {name}", f"{name}.get_config()"
    return f"import runpy\n\n{name} = runpy.run_path({os.path.abspath(path)!r})", f'{name}["get_config"]()'
