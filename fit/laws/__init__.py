"""The laws that can be fitted: one page (module) each in this folder and in the folder that $FIT_LAWS names.

A page declares COLUMNS (what it reads of a run besides the loss), COEFFICIENTS ({name: Coefficient}), the formula
log_loss(xp, c, x) of coefficients and columns by name, and PRESETS (published coefficients with their source). It may
add

  scaled_starts  random starts in the measure of the runs, entries of `params` by name
  chinchilla_coefficients_at(c, n_experts)
                 where the law is a Chinchilla law at each number of experts: its (m, mu, n, nu, c), for plans in
                 closed form
  FLOOR          the name of c of an additive law, (size + data) + c, whose log_reducible_loss(xp, c, x) is
                 ln(size + data): it can be fitted with both coupled, too (_coupled.py), as NAME_coupled
  JAVASCRIPT     an object in JavaScript with log_loss(c, x) and, where the page has it, chinchilla_coefficients_at(c,
                 n_experts), for the planner page; it may call logaddexp(a, b) and FORMULAS.NAME. With FLOOR it has
                 log_reducible_loss, too
  SEPARATE       the law that is fitted to the runs of each number of experts alone, and how this one contains it

A preset may also say

  counts         "without embedding", where the law's n_active and n_total are without embedding and head
  dense          the preset that the dense models of the same paper follow
  fixed          columns of ranges that all its runs share, so that the formula does not read them
  no_draws       why draws/ has no draws of it, in words; draws/ has those of all others, by the name of the preset

FORMS: {name: Form} of every page, those with plans in closed form first, then those that read most columns.
"""

import importlib
import importlib.util
import os
import pathlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from fit.errors import UserError
from fit.form import Form
from fit.laws._coupled import coupled

# what a page declares under another name than in version 0.2
RENAMED = {"at_experts": "chinchilla_coefficients_at", "log_above_floor": "log_reducible_loss"}


def _pages() -> Iterator[Any]:
    """The pages of this folder, then those of the folder that $FIT_LAWS names."""
    for path in pathlib.Path(__file__).parent.glob("[!_]*.py"):
        yield importlib.import_module(f"fit.laws.{path.stem}")
    folder = os.environ.get("FIT_LAWS")
    if not folder:
        return
    for path in pathlib.Path(folder).glob("[!_]*.py"):
        yield _page_of_user(path)


def _page_of_user(path: pathlib.Path) -> ModuleType:
    """A page of the folder that $FIT_LAWS names. Raises UserError where it fails, or uses names of version 0.2."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # as every .py has
    page = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(page)
    except Exception as error:  # noqa: BLE001  the page is the user's
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        hint = "; pinned_by is now called identified_by" if "pinned_by" in reason else ""
        raise UserError(f"FIT_LAWS: {path} fails: {reason}{hint}") from error
    for name, new_name in RENAMED.items():
        if hasattr(page, name):
            raise UserError(f"FIT_LAWS: {path}: {name} is now called {new_name}")
    return page


def _order(form: Form) -> tuple[bool, int, str]:
    """The sort key of a form: forms with plans in closed form first, then those that read most columns."""
    return not form.chinchilla_coefficients_at, -len(form.columns), form.name


_PAGES = [*_pages()]
_PAGES += [coupled(page) for page in _PAGES if hasattr(page, "FLOOR")]
FORMS = {form.name: form for form in sorted(map(Form, _PAGES), key=_order)}
PRESETS = {name: form for form in FORMS.values() for name in form.presets}
