"""Parameters: `get_params`, `set_params` and `repr` of learners, in the manner of scikit-learn."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import nn

from labelwise.errors import ArgumentError
from labelwise.io.text import did_you_mean

Self = TypeVar("Self", bound="Parameters")
WIDEST = 80  # characters of a value in `repr`


class Parameters:
    """Base class: the parameters of an object are the arguments of its `__init__`, as they were given.

    `sklearn.base.clone`, `ParameterGrid` loops and `set_params(estimator__C=1)` work with it.

    >>> from labelwise.train import SklearnLearner
    >>> from sklearn.base import clone
    >>> from sklearn.linear_model import LogisticRegression
    >>> learner = SklearnLearner(LogisticRegression(), cross_validate="C")
    >>> learner
    SklearnLearner(LogisticRegression(), cross_validate='C')
    >>> clone(learner).set_params(estimator__max_iter=500, cross_validate=None)
    SklearnLearner(LogisticRegression(max_iter=500))
    """

    _given: tuple[tuple[Any, ...], Mapping[str, Any]]
    _adapted = False

    def __init_subclass__(cls) -> None:
        """Have `__init__` note its arguments."""
        if "__init__" in vars(cls):
            cls.__init__ = _noting(cls.__init__)  # type: ignore[method-assign]

    def __copy__(self: Self) -> Self:
        return self.adapted()

    def adapted(self: Self, **attributes: Any) -> Self:
        """A copy with other attributes, made by a recipe or a session: they may differ from its parameters.

        Args:
            attributes: new values by name.

        Returns:
            The copy.
        """
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, **attributes, _adapted=True)
        return made

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name.

        Args:
            deep: also those of parameters that have some, as "estimator__C".

        Returns:
            Values by name.
        """
        args, kwargs = getattr(self, "_given", ((), vars(self)))  # a dataclass keeps its arguments as attributes
        values: dict[str, Any] = {}
        for parameter, value in zip(_signature(self).values(), args):
            values[parameter.name] = value
        values |= {name: one.default for name, one in _signature(self).items() if name not in values}
        values |= {name: value for name, value in kwargs.items() if name in values or "_given" in vars(self)}
        if deep:
            for name, value in tuple(values.items()):
                if hasattr(value, "get_params") and not isinstance(value, type):
                    values |= {f"{name}__{inner}": one for inner, one in value.get_params().items()}
        return values

    def set_params(self: Self, **parameters: Any) -> Self:
        """Change parameters, checked as by `__init__`; "estimator__C" changes one of the parameter `estimator`.

        Args:
            parameters: new values by name.

        Returns:
            The learner itself.

        Raises:
            ArgumentError: there is no such parameter, a value is out of range, or this is the copy of a session.
        """
        if self._adapted:
            raise ArgumentError(
                f"this {type(self).__name__} was adapted by a session; call set_params of the learner that you made, "
                "and pass it to a new session"
            )
        values = self.get_params(deep=False)
        inner: dict[str, dict[str, Any]] = {}
        for name, value in parameters.items():
            first, _, rest = name.partition("__")
            if first not in values or (rest and not hasattr(values[first], "set_params")):
                known = list(self.get_params())
                hint = did_you_mean(name, known) or ";"
                raise ArgumentError(f"{type(self).__name__} has no parameter {name!r}{hint} it has {', '.join(known)}")
            if rest:
                inner.setdefault(first, {})[rest] = value
            else:
                values[first] = value
        for first, parts in inner.items():
            values[first].set_params(**parts)
        self.__dict__ = type(self)(**values).__dict__
        return self

    def __repr__(self) -> str:
        """The parameters that differ from their defaults."""
        parts = []
        known = _signature(self)
        for name, value in self.get_params(deep=False).items():
            default = known[name].default if name in known else inspect.Parameter.empty
            if name in known and default is inspect.Parameter.empty:
                parts.append(_short(value))
            elif not _is_equal(value, default):
                parts.append(f"{name}={_short(value)}")
        return f"{type(self).__name__}({', '.join(parts)})"


def _noting(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def noting(self: Any, *args: Any, **kwargs: Any) -> None:
        if "_given" not in vars(self):  # not the call of a base class
            self._given = (args, kwargs)
        init(self, *args, **kwargs)

    return noting


def _signature(owner: Any) -> dict[str, inspect.Parameter]:
    """The parameters of `__init__` that have names of their own."""
    _, *parameters = inspect.signature(type(owner).__init__).parameters.values()
    return {one.name: one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}


def _is_equal(value: Any, default: Any) -> bool:
    try:
        return value is default or bool(value == default)
    except (TypeError, ValueError, RuntimeError):  # arrays, whose comparison has many values
        return False


def _short(value: Any) -> str:
    """A value in a few characters."""
    if isinstance(value, nn.Module):
        return type(value).__name__
    text = getattr(value, "__qualname__", None) or " ".join(repr(value).split())
    return text if len(text) <= WIDEST else f"{text[:WIDEST]}..."
