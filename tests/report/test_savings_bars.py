"""The picture of labels saved, and the part of the README that shows it."""

from __future__ import annotations

import io
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import make_evidence as script
import pytest
from PIL import Image

from labelwise.errors import ArgumentError
from labelwise.recommend import Confirmed, Findings, Tried, read_findings
from labelwise.report.savings_bars import ALIKE, FEWER, MORE, Bar, alternative, png

ROOT = Path(__file__).parents[2]
BARS = [
    Bar("a set", 0.4, 0.2, 0.5, "better", "90.0   80.0"),
    Bar("another", -3.0, -math.inf, 0.1, "same", "70.0   70.1"),
    Bar("third", -0.3, -0.5, -0.1, "worse", "60.0   65.0"),
]


def colours(bars: list[Bar]) -> set[str]:
    with Image.open(io.BytesIO(png(bars, "Labels saved", "at the end"))) as picture:
        found = picture.convert("RGB").getcolors(1 << 24) or []
    return {"#{:02x}{:02x}{:02x}".format(*colour) for count, colour in found if count > 800}


def test_outcomes_have_their_colours_and_long_bars_stay_inside() -> None:
    assert {FEWER, MORE, ALIKE} <= colours(BARS)
    assert not {MORE, ALIKE} & colours(BARS[:1])


def test_it_is_wide_enough_for_a_page_and_grows_by_rows() -> None:
    with Image.open(io.BytesIO(png(BARS, "t", "e"))) as small, Image.open(io.BytesIO(png(BARS * 3, "t", "e"))) as large:
        assert small.width == large.width < 1100
        assert large.height > small.height + 6 * 40


def test_the_picture_in_words_has_every_number() -> None:
    assert alternative(BARS, "Saved") == "Saved: a set 40 %, another −300 %, third −30 %"


def test_no_data_set_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="needs one data set or more"):
        png([], "t", "e")


@pytest.mark.slow
def test_the_readme_and_its_picture_are_what_the_records_give() -> None:
    command = [sys.executable, str(ROOT / "scripts/make_evidence.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def findings(
    choice: str, saved: float, sets: tuple[str, ...] = ("core/a/m", "core/b/m"), better: int = 1, below: int = 0
) -> Findings:
    tried = Tried("badge", saved, -0.1, 0.5, len(sets), better=better, below=below, lower=1)
    return Findings("network", ("docs/results/core",), sets, 10, {}, (tried,), choice)


def test_the_table_is_right_for_any_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "network": findings("badge", 0.35),
        "trees": findings("random", 0.1, below=1),
        "regression": findings("badge", 0.2, better=2),
    }
    monkeypatch.setattr(script, "read_findings", lambda: found)
    monkeypatch.setattr(script, "bars", lambda found: BARS)
    text, picture, _ = script.content()
    assert "`badge` needed 35 % fewer labels than random for the same accuracy, at the median." in text
    assert "better over the whole curve on 1 of them, and below random on none." in text
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert [row.split(" | ", 1)[1] for row in rows] == [
        "`badge` | 35 % (−10 % to 50 %) | 1 of 2 * | 0 of 2 |",
        "`badge` | 20 % (−10 % to 50 %) * | 2 of 2 | 0 of 2 |",
        "`random` | 0 % * | – | – |",
    ]
    assert "A recommendation should save 30 % at the median and be better on 5 of 7 experiments" in text
    assert "what falls short has a *." in text
    assert picture
    monkeypatch.setattr(script, "read_findings", lambda: {"network": findings("badge", 0.3, better=2)})
    assert "every row does." in script.content()[0]


def test_a_confirmed_recipe_is_shown_with_its_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Confirmed("docs/results/recommended", 20, Tried("typiclust+badge", 0.4, 0.1, 0.6, 2, 2, 0, 0))
    found = {"network": replace(findings("badge", 0.35), confirmed=whole), "trees": findings("badge", 0.35)}
    monkeypatch.setattr(script, "read_findings", lambda: found)
    monkeypatch.setattr(script, "bars", lambda found: BARS)
    text = script.content()[0]
    assert "`typiclust+badge` needed 40 % fewer labels" in text
    assert "below random on none (20 seeds that did not choose it)." in text
    assert "`typiclust+badge` † | 40 % (10 % to 60 %) | 2 of 2 | 0 of 2 |" in text
    assert "`badge` | 35 %" in text
    assert "with 20 seeds that did not choose it" in text
    assert "Other rows: one strategy, with the 10 seeds that chose it" in text


@pytest.mark.parametrize(
    ("better", "start"),
    [(0, "Not measurably. With"), (1, "It depends on"), (5, "On most data. With"), (7, "On all data that were tried.")],
)
def test_the_answer_follows_the_verdicts(monkeypatch: pytest.MonkeyPatch, better: int, start: str) -> None:
    sets = tuple(f"core/{name}/m" for name in "abcdefg")
    monkeypatch.setattr(script, "read_findings", lambda: {"network": findings("badge", 0.4, sets, better)})
    monkeypatch.setattr(script, "bars", lambda found: BARS)
    text = script.content()[0]
    assert text.startswith(start)
    assert f"on {better or 'none'} of them, and below random on none." in text


def test_where_nothing_is_recommended_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "read_findings", lambda: {"network": findings("random", 0.4, below=1)})
    text, picture, _ = script.content()
    assert text.startswith("Not reliably. With a small network on 2 data sets, no strategy passed [the rule]")
    assert "most labels saved: badge (40 %; below random on 1)." in text
    assert "![" not in text
    assert picture == b""


@pytest.mark.slow
def test_the_colour_of_a_bar_is_the_verdict_that_the_table_counts() -> None:
    for name in ("margin", "typiclust"):
        found = replace(read_findings()["network"], choice=name, confirmed=None)
        tried = next(one for one in found.tried if one.strategy == name)
        assert sum(bar.outcome == "better" for bar in script.bars(found)) == tried.better
    again = read_findings()["network"]
    assert again.confirmed is not None
    shown = script.bars(again)
    assert sum(bar.outcome == "better" for bar in shown) == again.confirmed.tried.better
    assert sorted(bar.share for bar in shown)[len(shown) // 2] == pytest.approx(again.confirmed.tried.saved, abs=1e-4)


def test_the_check_sees_other_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(script, "read_findings", lambda: {"network": findings("badge", 0.35)})
    page, picture = tmp_path / "README.md", tmp_path / "savings.png"
    page.write_text(f"before\n{script.BEGIN}\n{script.END}\nafter\n")
    monkeypatch.setattr(script, "README", page)
    monkeypatch.setattr(script, "PICTURE", picture)
    monkeypatch.setattr(script, "bars", lambda found: BARS)
    monkeypatch.setattr(sys, "argv", ["make_evidence.py"])
    script.main()
    assert page.read_text().startswith(
        f"before\n{script.BEGIN}\nIt depends on the data. With a small network on 2 data"
    )
    assert "| `" in page.read_text()
    monkeypatch.setattr(sys, "argv", ["make_evidence.py", "--check"])
    script.main()
    for change in (lambda: page.write_text(page.read_text().replace("It depends", "It hardly depends")),
                   lambda: picture.write_bytes(script.stamped(png(BARS[:1], "t", "e"), "other"))):  # fmt: skip
        originals = page.read_text(), picture.read_bytes()
        change()
        with pytest.raises(SystemExit, match="out of date"):
            script.main()
        page.write_text(originals[0])
        picture.write_bytes(originals[1])
    page.write_text("no markers")
    with pytest.raises(SystemExit, match="are missing"):
        script.main()
