"""Which suggestions a project has: the content of `suggest.json`. It can be changed at any time."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from labelwise.errors import ArgumentError, StoreError
from labelwise.io.checked import read_checked, write_checked
from labelwise.io.yaml_text import load_yaml

FILE = "suggest.json"
MODEL, OFF, AUTO = "model", "off", "auto"
_REMEDY = "remove it, and name what suggests again with `labelwise resume PROJECT --suggest ...`"


@dataclass(frozen=True)
class SuggestSettings:
    """What suggests labels besides the model of the project.

    Attributes:
        by: "model" for that model alone, "off" for none at all, "auto" for the encoder of the project, the name of
            another encoder that reads class names, or the address of an OpenAI-compatible endpoint.
        model: the name of the model at that address.
        descriptions: what a class means, for classes whose name does not say it.
    """

    by: str = MODEL
    model: str = ""
    descriptions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.is_endpoint and not self.model:
            raise ArgumentError(
                f"--suggest {self.by}: name the model that is to suggest there, such as --suggest-model llama3.1"
            )
        if not self.is_endpoint and self.model:
            raise ArgumentError(
                f"--suggest-model {self.model} names a model at an address; give it with --suggest http://..."
            )

    @property
    def is_endpoint(self) -> bool:
        """Whether an address suggests."""
        return self.by.startswith(("http://", "https://"))

    @property
    def is_class_names(self) -> bool:
        """Whether an encoder compares rows with the names of the classes."""
        return self.by not in (MODEL, OFF) and not self.is_endpoint

    @property
    def is_measured_first(self) -> bool:
        """Whether test rows are asked before anything else, so that the suggestions are measured soon."""
        return self.is_class_names or self.is_endpoint

    def write(self, folder: Path) -> None:
        """Write `suggest.json` of a project."""
        write_checked(folder / FILE, asdict(self), indent=1)


def read_suggest_settings(folder: Path) -> SuggestSettings:
    """What suggests in the project in `folder`; its model alone where nothing else was named."""
    try:
        found = read_checked(folder / FILE, _REMEDY, early=None)
        return SuggestSettings(str(found["by"]), str(found["model"]), _texts(found["descriptions"]))
    except FileNotFoundError:
        return SuggestSettings()
    except (ValueError, KeyError, TypeError, ArgumentError) as error:
        raise StoreError(f"{folder / FILE} cannot be read ({error}); {_REMEDY}") from error


def read_descriptions(path: Path) -> dict[str, str]:
    """Descriptions of classes from a YAML file: a line `class: what it means` for each. ArgumentError otherwise."""
    try:
        return _texts(load_yaml(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ArgumentError(
            f"--describe {path}: expected lines such as `sports: matches, players and results`; {error}"
        ) from error


def _texts(found: Any) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(one, (str, int, float)) for one in found.values()):
        raise ValueError(f"found {type(found).__name__}, not a text for each class")
    return {str(name): " ".join(str(text).split()) for name, text in found.items()}
