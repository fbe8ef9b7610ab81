"""The errors that a public function raises on purpose, read from its source, to compare with its `Raises:`."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any

# Functions that only check arguments, in any module; private functions of the same module may do it too.
CHECKS = re.compile(r"_?(?:check|require)(?:_|$)")
MAKERS = ("__new__", "__init__", "__post_init__")


def undocumented(one: Any, owner: type | None = None) -> list[str]:
    """Errors that a function, method or class raises and does not list; a base class stands for its subclasses."""
    names = listed(_docstring(one))
    found = {error for function in _functions(one) for error in raised(function, owner or _class(one))}
    return sorted(error.__name__ for error in found if not names & {base.__name__ for base in error.__mro__})


def listed(text: str) -> set[str]:
    """The names under `Raises:`.

    >>> sorted(listed("Raises:\\n    A, B: this,\\n        and more: so.\\n    C: that.\\n\\nReturns:\\n    D: it.\\n"))
    ['A', 'B', 'C']
    """
    sections = re.findall(r"^Raises:\n((?: +\S.*\n?)+)", text, flags=re.MULTILINE)
    lines = "\n".join(textwrap.dedent(section) for section in sections)
    return set(", ".join(re.findall(r"^([\w.]+(?:, [\w.]+)*):", lines, flags=re.MULTILINE)).split(", "))


@cache
def raised(function: Any, owner: type | None) -> frozenset[type[Exception]]:
    """The errors of labelwise.errors, ValueError and TypeError that a function raises itself or by its checks.

    An error that the function catches does not count, nor does one of a function that it calls for more than a check.
    """
    return frozenset(error for error in _raised(function, owner, set()) if _on_purpose(error))


def _on_purpose(error: type) -> bool:
    return error.__module__ == "labelwise.errors" or error in (ValueError, TypeError)


def _class(one: Any) -> type | None:
    return one if inspect.isclass(one) else None


def _functions(one: Any) -> list[Any]:
    """The function itself, or those of Labelwise that make an instance of the class."""
    found = [inspect.getattr_static(one, name, None) for name in MAKERS] if inspect.isclass(one) else [one]
    return [function for function in map(_plain, found) if function is not None]


def _docstring(one: Any) -> str:
    texts = [inspect.getdoc(one), *(inspect.getdoc(function) for function in _functions(one))]
    return "\n\n".join(dict.fromkeys(text for text in texts if text)) + "\n"


def _plain(one: Any) -> Any:
    """The function of a method, property or decorated function, if Labelwise defines it; else None."""
    one = one.fget if isinstance(one, property) else getattr(one, "__func__", one)
    one = inspect.unwrap(one) if callable(one) else one
    return one if inspect.isfunction(one) and one.__module__.startswith("labelwise") else None


def _raised(function: Any, owner: type | None, seen: set[Any]) -> set[type]:
    if function in seen:
        return set()
    seen.add(function)
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, SyntaxError):  # written by dataclass, or a lambda inside of a call
        return set()
    found: set[type] = set()
    for node, caught in _calls_and_raises(tree, function, owner, ()):
        if isinstance(node, ast.Raise):
            target = _resolve(node.exc.func if isinstance(node.exc, ast.Call) else node.exc, function, owner)
            made = _made(target)
            errors = {made} if made is not None else set()
        else:
            target = _plain(_resolve(node.func, function, owner))
            private = (
                target is not None and target.__name__.startswith("_") and target.__module__ == function.__module__
            )
            checks = target is not None and (CHECKS.match(target.__name__) or target.__name__ in MAKERS)
            own = owner if isinstance(node.func, ast.Attribute) else None
            errors = _raised(target, own, seen) if private or checks else set()
        found |= {error for error in errors if not issubclass(error, caught)}
    return found


def _calls_and_raises(
    node: ast.AST, function: Any, owner: type | None, caught: tuple[type, ...]
) -> Iterator[tuple[Any, tuple[type, ...]]]:
    """Every call and raise below a node, with the errors that are caught there."""
    if isinstance(node, ast.Try):
        types = [handler.type for handler in node.handlers]
        parts = [part for one in types for part in (one.elts if isinstance(one, ast.Tuple) else [one])]
        more = [_resolve(part, function, owner) if part is not None else BaseException for part in parts]
        inside = (*caught, *(one for one in more if inspect.isclass(one)))
        for one in node.body:
            yield from _calls_and_raises(one, function, owner, inside)
        rest = [*node.handlers, *node.orelse, *node.finalbody]
    else:
        if isinstance(node, ast.Call) or (isinstance(node, ast.Raise) and node.exc is not None):
            yield node, caught
        rest = list(ast.iter_child_nodes(node))
    for one in rest:
        yield from _calls_and_raises(one, function, owner, caught)


def _resolve(node: ast.AST, function: Any, owner: type | None) -> Any:
    """What a name in the source of a function stands for; None if it depends on the arguments."""
    match node:
        case ast.Name(id=name):
            return function.__globals__.get(name, getattr(builtins, name, None))
        case ast.Attribute(attr=name, value=ast.Name(id="self" | "cls")) if owner is not None:
            return inspect.getattr_static(owner, name, None)
        case ast.Attribute(attr=name, value=ast.Call(func=ast.Name(id="super"))) if owner is not None:
            return next((vars(base)[name] for base in owner.__mro__[1:] if name in vars(base)), None)
        case ast.Attribute(attr=name, value=value):
            inner = _resolve(value, function, owner)
            return getattr(inner, name, None) if inspect.ismodule(inner) or inspect.isclass(inner) else None
    return None


def _made(target: Any) -> type | None:
    """The class of an error, also of one that a function makes."""
    if inspect.isfunction(target):
        kind = target.__annotations__.get("return")
        target = target.__globals__.get(kind) if isinstance(kind, str) else kind
    return target if inspect.isclass(target) and issubclass(target, BaseException) else None
