"""The laws' formulas in JavaScript, as their pages in fit/laws/ state them, for the planner page."""

from collections.abc import Iterable

from fit.errors import UserError
from fit.form import Form

# What a page's JAVASCRIPT may call besides Math: ln(e^a + e^b), for numbers.
PRELUDE = """function logaddexp(a, b) {
  return Math.max(a, b) + Math.log1p(Math.exp(-Math.abs(a - b)));
}
"""


def has_formula(form: Form) -> bool:
    """Whether the form's page states its formula in JavaScript."""
    return hasattr(form.page, "JAVASCRIPT")


def script(forms: Iterable[Form]) -> str:
    """JavaScript that defines FORMULAS = {form: {log_loss(c, x), chinchilla_coefficients_at(c, n_experts)}}.

    chinchilla_coefficients_at is there where the page has it in Python. Raises UserError for a form without JAVASCRIPT.
    """
    entries = []
    for form in forms:
        if not has_formula(form):
            raise UserError(
                f"the law {form.name} has no JAVASCRIPT in {form.page.__file__}: the planner page computes in the "
                "browser, so a law's page must state log_loss in JavaScript too (see fit/laws/__init__.py)"
            )
        entries.append(f"  {form.name}: {form.page.JAVASCRIPT.strip()},\n")
    return f"{PRELUDE}const FORMULAS = {{\n{''.join(entries)}}};\n"
