"""The registry: names, facts as class attributes, strategies of installed packages, and the tables made from them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from torch import Tensor

import labelwise as lw
from labelwise.errors import ArgumentError
from labelwise.registry import Registry
from labelwise.rng import Key
from labelwise.selection import Scored
from labelwise.signals.rows import Rows

ROOT = Path(__file__).parents[2]
PLUGIN = """
from labelwise.registry import register
from labelwise.selection import Scored

@register
class Newest(Scored):
    name = "newest"
    reason = "It came last."

    def score(self, rows, key):
        return rows.ids.double()
"""


class First(Scored):
    """Rows of smallest id."""

    name = "first"

    def score(self, rows: Rows, key: Key) -> Tensor:
        return -rows.ids.double()


def test_every_strategy_of_the_package_is_imported() -> None:
    declared: set[str] = set()
    for path in (ROOT / "src/labelwise/strategies").rglob("*.py"):
        declared |= set(re.findall(r"^@register\n(?:@.*\n)*class (\w+)", path.read_text(), flags=re.MULTILINE))
    assert declared == {kind.__name__ for kind in lw.strategies.ALL.values()}


@pytest.mark.parametrize("name", lw.strategies.names())
def test_every_strategy_states_its_facts(name: str) -> None:
    strategy = lw.strategies.get(name)
    assert strategy.name == name == lw.strategies.name_of(strategy)
    assert lw.strategies.ALL[name].name in (name, *strategy.variants)
    for fact in (strategy.picks, strategy.cost, strategy.paper):
        assert fact
    assert strategy.growth is not None
    assert re.fullmatch(r"[A-Z][^.]*\.", lw.strategies.reason_of(name)), "one plain sentence"


def test_reason_of_a_strategy_that_is_not_registered() -> None:
    assert lw.strategies.reason_of("Mine") == "Chosen by Mine."


def test_name_of_a_class_of_the_users_own_is_that_of_the_class() -> None:
    class Mine(lw.strategies.Margin): ...

    assert lw.strategies.name_of(Mine()) == "Mine"
    assert lw.strategies.name_of(lw.strategies.Sabal(solver="iht", alpha=1.0)) == "sabal-iht"


def test_the_objective_of_a_recipe_is_that_of_the_class() -> None:
    class Mine(lw.strategies.Margin):
        objective = lw.train.PrimalDual(epsilon=0.3)
        restart = False

    recipe = lw.recipes.get(Mine())
    assert recipe.objective == lw.train.PrimalDual(epsilon=0.3)
    assert recipe.restart is False


def test_names_are_checked() -> None:
    registry = Registry()
    registry.add(First)
    registry.add(First)  # a cell of a notebook that runs twice
    assert registry["first"] is First
    registry.add(type("Other", (lw.strategies.Sabal,), {"name": "my-sabal"}))
    assert list(registry) == ["first", "my-sabal"]
    with pytest.raises(ArgumentError, match="expects a subclass"):
        registry.add(int)  # type: ignore[arg-type]
    for bad in ("", "a+b", "Upper", None):
        with pytest.raises(ArgumentError, match="lower-case words joined by hyphens"):
            registry.add(type("Other", (First,), {"name": bad}))
    with pytest.raises(ArgumentError, match="the strategy name 'first' is taken by"):
        registry.add(type("Other", (First,), {}))


def install(folder: Path, entries: str, version: str = "1") -> None:
    """A distribution with these entry points, as pip would leave it."""
    folder.mkdir(exist_ok=True)
    (folder / "plugin.py").write_text(PLUGIN)
    info = folder / f"plugin-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: plugin\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[labelwise.strategies]\n{entries}\n")


def run_with(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\nimport labelwise as lw\n{code}"],
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_a_strategy_of_an_installed_package(tmp_path: Path) -> None:
    install(tmp_path, "newest = plugin:Newest")
    done = run_with(
        tmp_path,
        "assert lw.strategies.names()[-1] == 'newest' and 'plugin' not in sys.modules\n"
        "print(lw.select('newest', 2, ids=[3, 9, 4]).ids.tolist(), lw.recipes.get('typiclust+newest').name)\n"
        "print(lw.strategies.reason_of('newest'), lw.strategies.name_of(lw.strategies.get('newest')))",
    )
    assert done.stdout.split("\n") == ["[9, 4] typiclust+newest", "It came last. newest", ""], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("newest = nowhere:Newest", "cannot be imported from nowhere:Newest: ModuleNotFoundError"),
        ("latest = plugin:Newest", "leads to plugin:Newest, whose name is 'newest'; make them equal"),
    ],
)
def test_a_faulty_package_stops_only_its_own_strategy(tmp_path: Path, entry: str, message: str) -> None:
    install(tmp_path, entry)
    name = entry.split()[0]
    done = run_with(
        tmp_path, f"lw.strategies.get('margin')\nprint(lw.strategies.names()[-1])\nlw.strategies.get({name!r})"
    )
    assert done.stdout.strip() == name
    assert f"ArgumentError: the {'strategy' if 'nowhere' in entry else 'entry point'} {name!r}" in done.stderr
    assert message in done.stderr


@pytest.mark.slow
def test_listings_name_a_faulty_package_and_go_on(tmp_path: Path) -> None:
    install(tmp_path, "broken = nowhere:Broken\nnewest = plugin:Newest")
    code = """
import warnings
from labelwise.cli.strategies import facts_of_all
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    listed = [facts["name"] for facts in facts_of_all()]
    reasons = lw.strategies.reason_of("broken")
    try:
        lw.recipes.Recipe("mine", lw.strategies.Margin(), lw.strategies.Margin())
    except lw.errors.ArgumentError as error:
        print("newest" in str(error), "broken" in str(error))
print(listed[-1], "broken" in listed, reasons)
print({str(one.message) for one in caught})
"""
    done = run_with(tmp_path, code)
    shown = done.stdout.split("\n")
    assert shown[:2] == ["False False", "newest False Chosen by broken."], done.stderr
    assert "'broken' of an installed package cannot be imported from nowhere:Broken: Module" in shown[2]
    assert "It is left out; mend or remove that package" in shown[2]


@pytest.mark.slow
def test_two_packages_of_one_name(tmp_path: Path) -> None:
    install(tmp_path / "a", "newest = plugin:Newest")
    install(tmp_path / "b", "newest = other:Newest", "2")
    done = run_with(tmp_path / "a", f"sys.path.append({str(tmp_path / 'b')!r})\nlw.strategies.names()")
    # Of one distribution under two paths only the first counts; of two distributions both do.
    assert done.returncode == 0
    info = tmp_path / "b/plugin-2.dist-info/METADATA"
    info.write_text(info.read_text().replace("Name: plugin", "Name: other"))
    (tmp_path / "b/plugin-2.dist-info").rename(tmp_path / "b/other-2.dist-info")
    done = run_with(tmp_path / "a", f"sys.path.append({str(tmp_path / 'b')!r})\nlw.strategies.names()")
    assert "two installed packages have a strategy 'newest': plugin:Newest and other:Newest" in done.stderr


@pytest.mark.slow
def test_the_tables_in_readme_and_docs_are_up_to_date() -> None:
    script = [sys.executable, str(ROOT / "scripts/make_strategy_table.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_others_call_a_strategy_is_known_and_no_name_of_another() -> None:
    said = {word: name for name, kind in lw.strategies.ALL.items() for word in kind.also}
    assert sum(len(kind.also) for kind in lw.strategies.ALL.values()) == len(said)
    assert not set(said) & set(lw.strategies.names())
    for word, name in {"coreset": "kcenter", "Least_Confidence": "confidence", "breaking ties": "margin"}.items():
        with pytest.raises(ArgumentError, match=f"no strategy '{word}'; it is called '{name}' here; there are"):
            lw.Session([[0.0]], recipe=word, classes=2)


def test_an_unknown_name_says_how_commands_find_a_strategy_of_ones_own() -> None:
    with pytest.raises(
        ArgumentError, match=r"there is no strategy 'second-class'.* entry point 'labelwise\.strategies'"
    ):
        lw.strategies.get("second-class")
