"""The formulas of the laws' pages, and of the memory of training, as JavaScript, translated from their Python source:
each is written once.

A page may use arithmetic, assignments, comparisons, `a if b else c`, functions of its own and the functions of MATH,
of `xp` or numpy. What does not depend on the arguments is worked out here.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import numpy as np

from fit.errors import UserError
from fit.form import Form

MATH = {name: f"Math.{name}" for name in ("exp", "log", "log1p", "expm1", "sqrt", "log2", "log10", "tanh")}
MATH |= dict(maximum="Math.max", minimum="Math.min", power="Math.pow", abs="Math.abs", absolute="Math.abs")
MATH |= dict(max="Math.max", min="Math.min", ceil="Math.ceil")
MATH |= dict(logaddexp="logaddexp", where="where", ones_like="one")
KNOWN = (ast.Return, ast.Assign, ast.Subscript, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Load, ast.Store)
KNOWN += (ast.Name, ast.Tuple, ast.Starred, ast.IfExp, ast.Call, ast.USub, ast.UAdd)
KNOWN += (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Mod, ast.Pow, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
PRELUDE = """const one = () => 1;
const where = (condition, yes, no) => (condition ? yes : no);
const logaddexp = (a, b) =>
  a === b ? a + Math.LN2 : a > b ? a + Math.log1p(Math.exp(b - a)) : b + Math.log1p(Math.exp(a - b));
"""


def script(forms: Iterable[Form], functions: Iterable[FunctionType] = ()) -> str:
    """FORMULAS = {form: {log_loss(c, x), at_experts(c, n_experts)}}, the latter null where the page has none, with the
    functions that they call; and `functions` by their names. Raises UserError at what is not known."""
    made: dict[Callable, tuple[str, str]] = {}
    entries = []
    for form in forms:
        log_loss, reduced = _function(form.page.log_loss, made), getattr(form.page, "at_experts", None)
        at_experts = _function(reduced, made) if reduced else "null"
        entries.append(f"  {form.name}: {{ log_loss: {log_loss}, at_experts: {at_experts} }},\n")
    entries += [f"  {function.__name__}: {_function(function, made)},\n" for function in functions]
    return PRELUDE + "".join(code for _, code in made.values()) + f"const FORMULAS = {{\n{''.join(entries)}}};\n"


def _function(function: Callable, made: dict[Callable, tuple[str, str]]) -> str:
    """The name of the translated function, which comes into `made` with those that it calls."""
    if function not in made:
        translated = _Function(function, made).translated()
        made[function] = f"f{len(made)}", f"const f{len(made)} = {translated};\n"
    return made[function][0]


class _Function(ast.NodeTransformer):
    """Makes of a function's tree one that, written as Python, is JavaScript."""

    def __init__(self, function: Any, made: dict[Callable, tuple[str, str]]) -> None:
        scope = inspect.getclosurevars(function)
        self.known = {**scope.builtins, **scope.globals, **scope.nonlocals, "xp": np}
        (self.tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
        self.file, self.line, self.made = function.__code__.co_filename, function.__code__.co_firstlineno, made

    def translated(self) -> str:
        if not isinstance(self.tree, ast.FunctionDef):
            raise self._refused(self.tree)
        arguments = [a.arg for a in self.tree.args.args]
        stored = {n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self.locals, declared = stored | set(arguments), ", ".join(f"_{n}" for n in sorted(stored - set(arguments)))
        body = self.tree.body[bool(ast.get_docstring(self.tree)) :]
        body = [f"let {declared}"] * bool(declared) + [ast.unparse(self.visit(node)) for node in body]
        return f"({', '.join(f'_{name}' for name in arguments if name != 'xp')}) => {{ {'; '.join(body)} }}"

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr) and not isinstance(node, (ast.Tuple, ast.Starred)):
            if not self.locals & {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}:
                value = self._static(node)
                return ast.Constant(value if isinstance(value, str) else float(value))
        if not isinstance(node, KNOWN) or (isinstance(node, ast.Compare) and len(node.ops) > 1):
            raise self._refused(node)
        return super().visit(node)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Name(f"_{node.id}")

    def visit_Tuple(self, node: ast.Tuple) -> ast.expr:
        return ast.List([self.visit(one) for one in node.elts])

    def visit_Starred(self, node: ast.Starred) -> ast.expr:
        return ast.Name(f"...{ast.unparse(self.visit(node.value))}")

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        if isinstance(node.op, ast.Pow):  # JavaScript's ** takes no sign before it
            return self._call("Math.pow", node.left, node.right)
        return self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        return self._call("where", node.test, node.body, node.orelse)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        passed = [a for a in node.args if not (isinstance(a, ast.Name) and a.id == "xp")]
        return self._call(self._called(node.func), *passed)

    def _call(self, name: str, *arguments: ast.expr) -> ast.expr:
        return ast.Call(ast.Name(name), [self.visit(one) for one in arguments], [])

    def _called(self, node: ast.expr) -> str:
        """What JavaScript calls in place of a function of xp, of numpy or of Python."""
        function = self._static(node)
        name = getattr(function, "__name__", "")
        if inspect.isfunction(function) and not (function.__module__ or "").startswith("numpy"):
            return _function(function, self.made)
        if name not in MATH:
            raise self._refused(node)
        return MATH[name]

    def _static(self, node: ast.expr) -> Any:
        try:
            return eval(compile(ast.Expression(node), self.file, "eval"), dict(self.known))
        except Exception as e:
            raise self._refused(node) from e

    def _refused(self, node: ast.AST) -> UserError:
        line = self.line + getattr(node, "lineno", 1) - 1
        found = ast.unparse(node).partition("\n")[0]
        return UserError(f"{self.file}, line {line}: found {found}, which the planner page cannot translate")
