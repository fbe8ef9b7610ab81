"""The documentation site has every public name and every page; `make docs` builds it."""

from __future__ import annotations

import importlib.util
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import site_versions
import yaml
from site_hooks import PACKAGES, PAGES, layers, notebook, package_page, packages

import labelwise
from raised_errors import undocumented

ROOT = Path(__file__).parents[1]
REFERENCE = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
LISTED = set(re.findall(r"^::: (\S+)$", REFERENCE, flags=re.MULTILINE))


@pytest.mark.parametrize("name", sorted(labelwise.__all__))
def test_a_public_name_is_in_the_reference(name: str) -> None:
    one = getattr(labelwise, name)
    assert inspect.getdoc(one), f"labelwise.{name} has no docstring"
    inside = any(entry.startswith(f"labelwise.{name}.") for entry in LISTED)  # a package, by its parts
    assert f"labelwise.{name}" in LISTED or inside, f"docs/reference has no entry ::: labelwise.{name}"


def documented() -> list[tuple[str, Any]]:
    """Every public function, class and method that Labelwise defines, by its name."""
    found = []
    for name in sorted(labelwise.__all__):
        one = getattr(labelwise, name)
        if inspect.ismodule(one):
            continue
        found.append((name, one))
        members = inspect.getmembers_static(one) if inspect.isclass(one) else []
        for member, value in members:
            function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if inspect.isfunction(function) and not member.startswith("_"):
                found.append((f"{name}.{member}", function))
    return [(name, one) for name, one in found if one.__module__.startswith("labelwise")]


@pytest.mark.parametrize(("name", "one"), documented(), ids=[name for name, _ in documented()])
def test_the_reference_has_arguments_returns_and_an_example(name: str, one: Any) -> None:
    text = inspect.getdoc(one) or inspect.getdoc(getattr(labelwise, name.split(".")[0])) or ""
    if inspect.isclass(one):
        text += "\n" + (inspect.getdoc(one.__init__) or "")
    signature = inspect.signature(one)
    wanted = [argument for argument in signature.parameters if argument not in ("self", "cls")]
    arguments = "".join(re.split(r"^(?:Args|Attributes):$", text, flags=re.MULTILINE)[1:])
    lines = re.findall(r"^ +(\w+(?:, \w+)*):", arguments, flags=re.MULTILINE)
    named = {part for line in lines for part in line.split(", ")}
    assert [argument for argument in wanted if argument not in named] == []
    returns = not inspect.isclass(one) and signature.return_annotation not in (None, "None", inspect.Signature.empty)
    assert not (wanted and returns) or re.search(r"^(Returns|Yields):$", text, flags=re.MULTILINE)
    assert "." in name or ">>>" in text, "an example"


@cache
def shown() -> dict[str, tuple[Any, type | None]]:
    """Every function, class and method that the reference shows, by its full name, with the class of a method."""
    found: dict[str, tuple[Any, type | None]] = {}
    for entry in sorted(LISTED):
        one = pkgutil.resolve_name(entry)
        own = [
            n for n in vars(one) if not n.startswith("_") and getattr(vars(one)[n], "__module__", "") == one.__name__
        ]
        names = getattr(one, "__all__", own) if inspect.ismodule(one) else []
        for thing in [getattr(one, name) for name in names] or [one]:
            if not inspect.isclass(thing) and not inspect.isfunction(thing):
                continue
            name = f"{thing.__module__}.{thing.__qualname__}"
            found[name] = thing, None
            for member, value in inspect.getmembers_static(thing) if inspect.isclass(thing) else []:
                function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                if inspect.isfunction(function) and not member.startswith("_"):
                    found[f"{name}.{member}"] = function, thing
    return {name: found[name] for name in sorted(found) if found[name][0].__module__.startswith("labelwise")}


@pytest.mark.parametrize("name", shown())
def test_the_reference_lists_the_errors_that_are_raised(name: str) -> None:
    assert undocumented(*shown()[name]) == [], "`Raises:` does not list them"


EXAMPLE = '''
from labelwise.errors import LabelError, NeedError, RowError, extra

class Rows:
    """Rows.

    Raises:
        LabelError: a label is missing.
    """

    def __init__(self, labels):
        if None in labels:
            raise LabelError("x")
        self._check(labels)

    def _check(self, labels):
        if not labels:
            raise RowError("x")

def load(name):
    """Load.

    Raises:
        LabelwiseError: it cannot be loaded.
    """
    raise RowError(name)

def run(name):
    try:
        _look(name)
    except NeedError:
        pass
    try:
        load(name)
    except RowError as error:
        raise extra(name, "bench") from error

def _look(name):
    if name:
        raise NeedError(name)
'''


def test_errors_of_checks_count_and_caught_ones_do_not(tmp_path: Path) -> None:
    (tmp_path / "labelwise_example.py").write_text(EXAMPLE)
    spec = importlib.util.spec_from_file_location("labelwise_example", tmp_path / "labelwise_example.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert undocumented(module.Rows) == ["RowError"]
    assert undocumented(module.load) == []
    assert undocumented(module.run) == ["ExtraError"]


def test_every_strategy_is_in_the_reference() -> None:
    kinds = {type(labelwise.strategies.get(name)) for name in labelwise.strategies.names()}
    ours = {kind.__name__ for kind in kinds if kind.__module__.startswith("labelwise.")}
    assert ours <= {entry.rpartition(".")[2] for entry in LISTED}


def test_every_page_of_the_navigation_exists() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    pages = set(_pages(settings["nav"]))
    made = {*PAGES, *(f"{PACKAGES}/{name}.md" for name in packages())}  # by scripts/site_hooks.py
    assert made <= pages
    assert {page for page in pages - made if not (ROOT / "docs" / page).exists()} == set()
    written = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    results = {page for page in written if page.startswith("results/")}  # they are linked from results/README.md
    assert written - pages - results == set(), "mkdocs.yml does not have these pages"


def test_a_tutorial_is_a_notebook_of_text_and_code() -> None:
    page = "# Title\n\nText with a [link](../x.md).\n\n```python run\na = 1\nb = 2\n```\n\nMore\n\n```\nshell\n```\n"
    made = notebook(page)["cells"]
    assert [cell["cell_type"] for cell in made] == ["markdown", "code", "markdown"]
    assert made[0]["source"] == ["# Title\n", "\n", "Text with a link."]
    assert made[1]["source"] == ["a = 1\n", "b = 2"]
    assert "```" in "".join(made[2]["source"])


def _pages(entries: list[dict[str, object]]) -> list[str]:
    found = []
    for entry in entries:
        for value in entry.values():
            found += [value] if isinstance(value, str) else _pages(value)  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "tutorials").glob("*.md")), ids=lambda page: page.stem)
def test_a_tutorial_has_code_that_draws_its_pictures(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    code = "\n".join("".join(cell["source"]) for cell in notebook(text)["cells"] if cell["cell_type"] == "code")
    shown = re.findall(r"!\[[^\]]+\]\(\.\./pictures/tutorials/([\w-]+\.png)\)", text)
    assert shown, "a tutorial shows a picture"
    assert re.findall(r'savefig\("([\w-]+\.png)"', code) == shown
    pictures = ROOT / "docs" / "pictures" / "tutorials"
    assert all((pictures / name).exists() for name in shown), "run scripts/make_tutorials.py"


def test_a_notebook_draws_its_pictures_itself() -> None:
    page = "Text\n\n![Rows](../pictures/tutorials/ray.png)\n\n[Next](torch.md), [Python](https://python.org)\n"
    assert "".join(notebook(page)["cells"][0]["source"]) == "Text\n\nNext, [Python](https://python.org)"


def test_every_strategy_has_a_page_with_its_picture_and_facts() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "methods").glob("*.md"))
    named = {name for names in re.findall(r"<!-- facts of ([a-z -]+):", pages) for name in names.split()}
    assert set(labelwise.strategies.names()) <= named
    pictures = ROOT / "docs" / "pictures" / "toy"
    assert all((pictures / f"{name}.png").exists() for name in named), "run scripts/make_gallery.py"
    script = [sys.executable, str(ROOT / "scripts" / "make_method_pages.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_page_of_a_package_says_what_it_may_import() -> None:
    page = package_page("signals")
    assert "[pool](pool.md)" in page.split("**May import:**")[1].split("\n")[0]
    assert "[strategies](strategies.md)" in page.split("**May be imported by:**")[1].split("\n")[0]
    assert "| `spec.py` |" in page
    assert set(packages()) <= set(layers())


def test_the_picture_of_the_architecture_has_every_package() -> None:
    picture = (ROOT / "docs" / "pictures" / "architecture.svg").read_text(encoding="utf-8")
    assert [name for name in packages() if not re.search(rf"\b{name}\b", picture)] == []


def test_every_key_of_a_suite_is_in_the_reference(tmp_path: Path) -> None:
    from dataclasses import fields

    from labelwise.bench.suite.suite import DataSpec, Suite, read_suite

    page = (ROOT / "docs" / "reference" / "suite.md").read_text(encoding="utf-8")
    keys = {one.name for kind in (Suite, DataSpec) for one in fields(kind)}
    assert [key for key in sorted(keys) if f"`{key}`" not in page] == []
    example = tmp_path / "mine.yaml"
    example.write_text(page.split("```yaml\n")[1].split("```")[0])
    assert read_suite(example).name == "mine"


def test_every_error_has_a_cause_and_a_remedy() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    classes = {name for name, one in vars(labelwise.errors).items() if inspect.isclass(one)}
    errors = {name for name in classes if getattr(labelwise.errors, name).__module__ == "labelwise.errors"}
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+\|.+) \|$", page, flags=re.MULTILINE))
    assert errors <= set(rows)


def test_versions_are_those_of_tags_with_a_site(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "before there was a site")
    git("tag", "v0.1.0")
    (tmp_path / "mkdocs.yml").write_text("site_name: x\n")
    git("add", ".")
    git("commit", "-q", "-m", "site")
    for name in ("v0.9.0", "v0.10.0", "draft"):
        git("tag", name)
    assert site_versions.tags(tmp_path) == ["v0.10.0", "v0.9.0"]
    versions, page = site_versions.listed(["v0.10.0", "v0.9.0"])
    assert [one["version"] for one in json.loads(versions)] == ["v0.10.0", "v0.9.0", "next"]
    assert [one["aliases"] for one in json.loads(versions)] == [["latest"], [], []]
    assert page.count("index.html") == 3


def test_ci_builds_the_site_strictly() -> None:
    assert "make docs" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "make docs" in (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert settings["strict"] is True
    assert settings["theme"]["font"] is False
