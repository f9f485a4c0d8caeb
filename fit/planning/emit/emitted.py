"""Emitted Python is read again before it is written: it holds what was meant and nothing else that could run."""

import ast
from collections.abc import Mapping

from fit.errors import UserError
from fit.fitted_law.overrides import FIELDS as CONFIG_FIELDS

# The calls that a config makes: of the config that it starts from and of that of the law's runs, of the bound on the
# warm-up, and of the logarithm of the peak rate.
CALLS = ("base.get_config", "base['get_config']", "runs.get_config", "runpy.run_path", "min", "math.log")


def checked(source: str, overrides: Mapping[str, str]) -> str:
    """The source of an emitted config, as it was given.

    overrides: {field: literal as Python source} that it must set. Raises UserError where the source is no Python, sets
    another value or what is no field, or holds a statement or a call that no emitted config has.
    """
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"--emit_config: nothing is written: the config would be no Python ({error})") from error
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and ast.unparse(node.func) not in CALLS:
            raise _refusal(node)
    values: dict[str, list] = {}
    for statement in module.body:
        if isinstance(statement, ast.FunctionDef) and not statement.decorator_list and not statement.args.args:
            values = _assigned(statement)
            continue
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        is_base = isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "base"
        if not (is_text or is_base or isinstance(statement, ast.Import | ast.ImportFrom)):
            raise _refusal(statement)
    for field, literal in overrides.items():
        if ast.literal_eval(literal) not in values.get(field, ()):
            raise UserError(f"--emit_config: nothing is written: config.{field} would not be {literal}")
    return source


def _assigned(get_config: ast.FunctionDef) -> dict[str, list]:
    """{field: the literals that the body of get_config sets it to, one after another}, without what it computes."""
    values: dict[str, list] = {}
    for statement in get_config.body:
        if isinstance(statement, ast.Return):
            continue
        if not isinstance(statement, ast.Assign) or len(statement.targets) > 1:
            raise _refusal(statement)
        target = ast.unparse(statement.targets[0])
        if target == "config":
            continue
        if target == "config.data" and ast.unparse(statement.value).startswith("runs"):  # the text of the law's runs
            continue
        field = target.removeprefix("config.")
        # what the law predicts is set as a whole
        is_unknown = field != "predicted" and field not in CONFIG_FIELDS
        if field == target or is_unknown:
            raise _refusal(statement)
        if isinstance(statement.value, ast.Call):  # the warm-up and the rate are computed
            continue
        try:
            values.setdefault(field, []).append(ast.literal_eval(statement.value))
        except ValueError:
            raise _refusal(statement) from None
    return values


def _refusal(node: ast.stmt | ast.expr) -> UserError:
    """The error for what no emitted config holds."""
    return UserError(f"--emit_config: nothing is written: no config holds {ast.unparse(node)[:60]!r}")
