"""The commands' common form: `App` makes every command and its `--help` alike, `echo_faults` what they leave out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# What `--help` shows for a value that has no metavar, by the annotation of the option.
METAVARS = {"int": "N", "float": "X", "str": "TEXT", "list[str]": "TEXT", "Path": "PATH"}


class App(typer.Typer):
    """A Typer whose commands are `Command`s and which prints its help when no command is given."""

    def __init__(self, help: str, name: str | None = None):
        super().__init__(
            name=name,
            help=help,
            cls=_Group,
            no_args_is_help=True,
            add_completion=False,
            rich_markup_mode="rich",
            pretty_exceptions_enable=False,
        )

    def command(self, name: str | None = None) -> Any:  # type: ignore[override]  # fewer options
        """Register a function as a command."""
        return typer.Typer.command(self, name, cls=_Command)


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> Any:  # typer has no other place for the metavar of --help
        return _with_metavars(TyperCommand.get_params(self, ctx), self.callback)


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> Any:
        return _with_metavars(TyperGroup.get_params(self, ctx), self.callback)


def echo_faults(what: str, faults: Sequence[str], most: int = 5) -> None:
    """Print the first faults on the error stream, each after what became of it, and how many more there are."""
    for fault in faults[:most]:
        typer.secho(f"  {what}: {fault}", fg="yellow", err=True)
    if len(faults) > most:
        typer.secho(f"  and {len(faults) - most:,} more", fg="yellow", err=True)


def _with_metavars(params: Any, function: Callable[..., Any] | None) -> Any:
    """The parameters; a flag shows no type, and another option a word and not the name of a Python type."""
    types = (
        {} if function is None else {name: p.annotation for name, p in inspect.signature(function).parameters.items()}
    )
    for param in params:
        if param.default is None:
            param.show_default = False  # older versions print [default: None]
        if param.param_type_name == "option" and param.metavar is None:
            param.metavar = "" if param.is_flag else METAVARS.get(types.get(param.name, ""))
    return params
