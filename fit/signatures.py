"""Functions that take the options of a command: their signatures and docstrings come from its fields.

`takes_options` turns `def plan(law, *, options: PlanOptions)` into plan(law, *, flops=None, chips=None, ...). A help
text, a type and a default stand only in the fields of PlanOptions. stub.py writes the same for editors.

Types of arguments are wider than those of fields: a number may be a text such as "80GB", a tuple any collection.
"""

import collections.abc
import dataclasses
import difflib
import functools
import inspect
import os
import re
import textwrap
import types
import typing
from collections.abc import Callable
from typing import Any

from fit.options import Options

# {type of a field: what its argument may be}
ACCEPTED = {
    float: (float, str),
    int: (int, str),
    bool: (bool,),
    tuple[float, ...]: (collections.abc.Iterable[float], float, str),
    tuple[int, ...]: (collections.abc.Iterable[int], int, str),
    tuple[float, float]: (collections.abc.Iterable[float], str),
    tuple[str, ...]: (collections.abc.Iterable[str], str),
    dict[str, str]: (collections.abc.Mapping[str, object], str),
}


def takes_options(function: types.FunctionType) -> Callable[..., Any]:
    """The function with an argument for each field of its `options`, whose type is a subclass of Options.

    Raises (when it is called):
      TypeError: An argument has no such name.
      UserError: A value cannot be used.
    """
    kind = function.__annotations__["options"]
    own = own_parameters(function)
    fields = option_parameters(kind, {parameter.name for parameter in own})
    signature = inspect.Signature([*own, *fields])
    names = [parameter.name for parameter in fields]  # of the arguments that become options

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in signature.parameters:
                near = difflib.get_close_matches(name, signature.parameters, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{hint}")
        options = kind(**{name: kwargs.pop(name) for name in names if name in kwargs})
        return function(*args, **kwargs, options=options)

    call.__signature__ = signature.replace(return_annotation=function.__annotations__["return"])  # type: ignore
    call.__doc__ = docstring_with(function.__doc__ or "", kind, names)
    return call


def own_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a function without `options`."""
    parameters = inspect.signature(function).parameters.values()
    return [parameter for parameter in parameters if parameter.name != "options"]


def option_parameters(kind: type[Options], taken: set[str]) -> list[inspect.Parameter]:
    """A keyword parameter for each field of the options whose name is not taken."""
    parameters = []
    for field in dataclasses.fields(kind):
        if field.name in taken:
            continue
        default = inspect.Parameter.empty if "required" in field.metadata else field.default
        parameters.append(
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=accepted(field))
        )
    return parameters


def accepted(field: dataclasses.Field) -> Any:
    """The type of the argument of a field of options: a union, or a Literal of its choices."""
    members = typing.get_args(field.type) if isinstance(field.type, types.UnionType) else (field.type,)
    kinds: list[Any] = []
    if field.metadata["choices"]:
        kinds.append(typing.Literal.__getitem__(tuple(field.metadata["choices"])))  # Literal["a", "b"]
    elif "group" in field.metadata:
        kinds += [collections.abc.Mapping[str, object], str]
    elif field.metadata["flag"] == "string":
        kinds += [member for member in members if member is not type(None)]
    else:
        for member in members:
            kinds += ACCEPTED.get(member, ())
    if "path" in field.metadata:
        kinds.append(os.PathLike)
    if field.default is None and "required" not in field.metadata:
        kinds.append(None)
    union = kinds[0]
    for kind in kinds[1:]:
        union = union | kind
    return union


def docstring_with(docstring: str, kind: type[Options], names: list[str]) -> str:
    """The docstring with the named options at the end of its section Args."""
    before, section, after = inspect.cleandoc(docstring).partition("\nReturns:")
    lines = [before.rstrip()]
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for name in names:
        lines.append(argument_text(name, help_of(fields[name])))
    return "\n".join(lines) + f"\n{section}{after}"


def help_of(field: dataclasses.Field) -> str:
    """The help of an option; of a group without its <FIELDS>, and with the help of each field."""
    text = re.sub(r"^<\S+>: ", "", field.metadata["help"])
    if "group" not in field.metadata:
        return text
    parts = [f"{part.name} ({part.metadata['help']})" for part in dataclasses.fields(field.metadata["group"])]
    return f"{text} Fields: {'; '.join(parts)}."


def argument_text(name: str, help: str) -> str:
    """A line of Args: the help of a flag, in which other flags are named as arguments are."""
    text = re.sub(r"--([a-z_]+(?:=[\w:]*\w)?)", r"`\1`", help)
    return textwrap.fill(f"{name}: {text}", 112, initial_indent="  ", subsequent_indent="    ")
