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

from fit.errors import UserError
from fit.form import Form

MATH = {name: f"Math.{name}" for name in ("exp", "log", "log1p", "expm1", "sqrt", "log2", "log10", "tanh")}
MATH |= dict(maximum="Math.max", minimum="Math.min", power="Math.pow", abs="Math.abs", absolute="Math.abs")
MATH |= dict(max="Math.max", min="Math.min", ceil="Math.ceil")
MATH |= dict(logaddexp="logaddexp", where="where", ones_like="one")
OPERATORS: dict[type, str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Mod: "%",
    ast.USub: "-",
    ast.UAdd: "+",
}
OPERATORS |= {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "===", ast.NotEq: "!=="}
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
        reduced = getattr(form.page, "at_experts", None)
        parts = dict(
            log_loss=_function(form.page.log_loss, made), at_experts=_function(reduced, made) if reduced else "null"
        )
        entries.append(f"  {form.name}: {{ {', '.join(f'{name}: {value}' for name, value in parts.items())} }},\n")
    entries += [f"  {function.__name__}: {_function(function, made)},\n" for function in functions]
    return PRELUDE + "".join(code for _, code in made.values()) + f"const FORMULAS = {{\n{''.join(entries)}}};\n"


def _function(function: Callable, made: dict[Callable, tuple[str, str]]) -> str:
    """The name of the translated function, which comes into `made` with those that it calls."""
    if function not in made:
        translated = _Function(function, made).translated()
        made[function] = f"f{len(made)}", f"const f{len(made)} = {translated};\n"
    return made[function][0]


class _Function:
    def __init__(self, function: Any, made: dict[Callable, tuple[str, str]]) -> None:
        scope = inspect.getclosurevars(function)
        self.known = {**scope.builtins, **scope.globals, **scope.nonlocals}
        (self.tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
        self.file, self.line, self.made = function.__code__.co_filename, function.__code__.co_firstlineno, made

    def translated(self) -> str:
        if not isinstance(self.tree, ast.FunctionDef):
            raise self._refused(self.tree)
        self.locals = {a.arg for a in self.tree.args.args}
        self.locals |= {n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        body = [line for statement in self.tree.body for line in self._statement(statement)]
        arguments = ", ".join(f"_{a.arg}" for a in self.tree.args.args if a.arg != "xp")
        names = sorted(self.locals - {a.arg for a in self.tree.args.args})
        declared = [f"let {', '.join(f'_{name}' for name in names)};"] if names else []
        return f"({arguments}) => {{ {' '.join(declared + body)} }}"

    def _statement(self, node: ast.stmt) -> Iterable[str]:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # the docstring
        elif isinstance(node, ast.Return) and node.value:
            yield f"return {self._value(node.value)};"
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            yield f"{self._value(node.targets[0])} = {self._value(node.value)};"
        else:
            raise self._refused(node)

    def _value(self, node: ast.expr) -> str:
        free = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        if not free & self.locals and not isinstance(node, (ast.Tuple, ast.Starred)):
            value = self._static(node)
            if isinstance(value, str):
                return repr(value)
            return repr(float(value)).replace("inf", "Infinity")
        match node:
            case ast.Name():
                return f"_{node.id}"
            case ast.Subscript():
                return f"{self._value(node.value)}[{self._value(node.slice)}]"
            case ast.Tuple():
                return f"[{', '.join(map(self._value, node.elts))}]"
            case ast.Starred():
                return f"...{self._value(node.value)}"
            case ast.UnaryOp() if type(node.op) in OPERATORS:
                return f"({OPERATORS[type(node.op)]}{self._value(node.operand)})"
            case ast.BinOp(op=ast.Pow()):
                return f"Math.pow({self._value(node.left)}, {self._value(node.right)})"
            case ast.BinOp() if type(node.op) in OPERATORS:
                return f"({self._value(node.left)} {OPERATORS[type(node.op)]} {self._value(node.right)})"
            case ast.Compare(ops=[op]) if type(op) in OPERATORS:
                return f"({self._value(node.left)} {OPERATORS[type(op)]} {self._value(node.comparators[0])})"
            case ast.IfExp():
                return f"({self._value(node.test)} ? {self._value(node.body)} : {self._value(node.orelse)})"
            case ast.Call():
                passed = [a for a in node.args if not (isinstance(a, ast.Name) and a.id == "xp")]
                return f"{self._called(node.func)}({', '.join(map(self._value, passed))})"
        raise self._refused(node)

    def _called(self, node: ast.expr) -> str:
        """What JavaScript calls in place of a function of xp, of numpy or of Python."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "xp":
            name, function = node.attr, None
        else:
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
