"""`labelwise annotators`: links are printed, changed and revoked, and the page says whose link it opens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from labelwise.cli import app
from labelwise.errors import ArgumentError, StoreError
from labelwise.project import Project, Settings
from labelwise.server import Auth


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rows.csv").write_text("a,b\n" + "".join(f"{n},{n * n}\n" for n in range(30)))
    settings = Settings(name="t", kind="table", source="../rows.csv", columns=("a", "b"), classes=("x", "y"))
    Project.create(tmp_path / "project", settings).close()
    return tmp_path / "project"


def run(*words: object) -> str:
    return CliRunner().invoke(app, [str(word) for word in ("annotators", *words)], catch_exceptions=False).stdout


def links(text: str) -> dict[str, tuple[str, str]]:
    return {
        name.strip(): (role, token) for name, role, token in re.findall(r"^(.+?)  (\w+) +\S+token=(\w+)$", text, re.M)
    }


@pytest.mark.slow
def test_links_are_given_listed_replaced_and_revoked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "olga")
    assert "Nobody has a link of their own" in run("list", folder)
    first = run("add", folder, "ann", "ben")
    assert "olga owns the project" in first
    found, auth = links(first), Auth.make(folder)
    assert found == {
        "ann": ("label", auth.token_of("ann", 1)),
        "ben": ("label", auth.token_of("ben", 1)),
        "olga": ("own", auth.token_of("olga", 1)),
    }
    assert links(run("add", folder, "ann", "--role", "review"))["ann"] == ("review", found["ann"][1])
    assert links(run("new-link", folder, "ann"))["ann"] == ("review", auth.token_of("ann", 2))
    assert "The link of ben no longer works." in run("revoke", folder, "ben")
    listed = run("list", folder, "--url", "https://labels.example.org")
    assert "https://labels.example.org/?token=" in listed
    assert re.search(r"^ben +revoked$", listed, re.M)
    for words, refused in (
        (("revoke", folder, "olga"), StoreError),
        (("revoke", folder, "nobody"), ArgumentError),
        (("new-link", folder, "ben"), ArgumentError),
        (("add", folder, "cleo", "--role", "admin"), ArgumentError),
        (("add", folder, "x" * 61), ArgumentError),
        (("add", folder, "cleo", "--url", "example.org"), ArgumentError),
        (("revoke", folder, "ann", "nobody"), ArgumentError),
        (("new-link", folder, "ann", "nobody"), ArgumentError),
    ):
        with pytest.raises(refused):
            run(*words)
    found = links(run("list", folder))
    assert set(found) == {"ann", "olga"}
    assert found["ann"][1] == auth.token_of("ann", 2)  # where one name was refused, nobody's link was changed


def test_the_account_of_the_owner_may_have_the_name_of_an_annotator(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "Ann")
    assert {name: role for name, (role, _) in links(run("add", folder, "ann")).items()} == {
        "ann": "label",
        "Ann (owner)": "own",
    }
