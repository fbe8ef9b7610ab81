"""The pip command in errors: it works for a clone, a wheel and an index."""

from __future__ import annotations

import json
import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from labelwise import errors

ROOT = Path(__file__).resolve().parents[1]


class Installed:
    """A distribution with this origin."""

    def __init__(self, origin: dict[str, object] | None):
        self.origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self.origin is None else json.dumps(self.origin)


def command(origin: dict[str, object] | None, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(errors, "distribution", lambda name: Installed(origin))
    return errors.install_command("app")


def test_from_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    assert command(None, monkeypatch) == 'pip install "labelwise[app]"'


def test_from_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = tmp_path / "my clone"
    clone.mkdir()
    editable = {"url": clone.as_uri(), "dir_info": {"editable": True}}
    assert command(editable, monkeypatch) == f'pip install -e "{clone}[app]"'
    assert command({"url": clone.as_uri(), "dir_info": {}}, monkeypatch) == f'pip install "{clone}[app]"'
    clone.rmdir()
    assert command(editable, monkeypatch) == 'pip install "labelwise[app]"'


def test_from_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "labelwise-1.0-py3-none-any.whl"
    wheel.touch()
    found = command({"url": wheel.as_uri(), "archive_info": {}}, monkeypatch)
    assert found == f'pip install "labelwise[app] @ {wheel.as_uri()}"'


def test_from_a_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    origin = {"url": "https://example.org/labelwise", "vcs_info": {"vcs": "git", "commit_id": "0"}}
    assert command(origin, monkeypatch) == 'pip install "labelwise[app] @ git+https://example.org/labelwise"'


def test_from_source_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(errors, "distribution", absent)
    assert errors.install_command("app") == f'pip install "{ROOT}[app]"'
    assert errors.install_command("app") in str(errors.extra("fastapi", "app"))


def test_a_package_that_is_there_but_broken_is_not_called_missing() -> None:
    try:
        raise ImportError("compiled for another numpy")
    except ImportError:
        assert "is installed but cannot be imported (compiled for another numpy)" in str(errors.extra("scipy", "bench"))
    try:
        raise ModuleNotFoundError("no scipy")
    except ImportError:
        assert "which is not installed" in str(errors.extra("scipy", "bench"))


def test_every_pip_line_of_the_source_comes_from_install_command() -> None:
    lines = {
        path.name: [line for line in path.read_text(encoding="utf-8").splitlines() if re.search(r"labelwise\[\w", line)]
        for path in (ROOT / "src").rglob("*.py")
        if path.name != "errors.py"
    }
    assert not {name: found for name, found in lines.items() if found}
