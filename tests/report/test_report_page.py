"""Table, figure and page: what they say, that they are escaped, self-contained and whole."""

import base64
import csv
import dataclasses
import hashlib
import io
import itertools
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwise.errors import ArgumentError, ExtraError
from labelwise.io.files import write_text
from labelwise.report import figures
from labelwise.report.figures import png, space_out, svg
from labelwise.report.html import SCRIPT
from labelwise.report.page import page_html
from labelwise.report.tables import cells, csv_text, header, markdown
from labelwise.stats.curves import learning_curves
from labelwise.stats.record import Record
from labelwise.stats.summary import summarise

NASTY = "<script>alert(1)</script>|$x_1$"
ARGUMENTS = {"title": "Digits & <b>", "command": "labelwise demo <em> && b", "protocol": {"Data": "<i>digits</i>"}}


def records(names=("random", "margin", "kcenter"), seeds=7, rounds=6, metric="accuracy"):
    out = []
    for position, name in enumerate(names):
        rate = (60.0, 35.0, 60.0)[position % 3]
        for seed in range(seeds):
            rng = np.random.default_rng([position, seed])
            for round in range(rounds):
                labels = 20 + 20 * round
                good = 0.95 - 0.6 * np.exp(-labels / rate) + rng.normal(0, 0.006)
                out.append(
                    Record(
                        f"digits/mlp/{name}/{seed}",
                        name,
                        seed,
                        round,
                        labels,
                        {metric: float(good if metric == "accuracy" else 1 - good)},
                        select_seconds=0.5 if round < rounds - 1 else 99.0,
                        picked=[1, 2] if round < rounds - 1 else [],
                        environment={"torch": "2.13.0", "seed": str(seed), "os": "<os>"},
                    )
                )
    return out


def test_the_rows_hold_the_numbers():
    found = summarise(records(), counts=[40, 70])
    assert [row.strategy for row in found.rows] == ["random", "margin", "kcenter"]
    margin = found.rows[1]
    values = learning_curves(records())["margin"].values_ST
    assert margin.at[0].mean == pytest.approx(values[:, 1].mean())
    assert margin.at[0].spread == pytest.approx(2.4469 * values[:, 1].std(ddof=1) / 7**0.5)
    assert margin.at[1].mean == pytest.approx((values[:, 2] + values[:, 3]).mean() / 2)
    assert margin.area_mean == pytest.approx(values.mean())
    assert margin.select_seconds == 0.5  # the last round chooses nothing
    assert margin.saved is not None
    assert margin.saved.above_zero
    assert margin.found.outcome == "better"
    assert found.rows[0].saved is None
    assert found.rows[0].verdict == "the baseline of the comparison"
    assert found.rows[2].verdict == "no measurable difference from random"


def test_label_counts_are_chosen_evenly_without_the_start():
    assert summarise(records()).counts == (60, 80, 100, 120)
    assert summarise(records(rounds=9)).counts == (60, 100, 140, 180)
    assert summarise(records(rounds=2)).counts == (40,)
    assert summarise(records(rounds=1)).counts == (20,)


def test_without_random_there_is_no_verdict():
    found = summarise(records(("margin", "badge")))
    assert [row.verdict for row in found.rows] == ["no run of random to compare with"] * 2
    assert "Nothing to compare" in page_html(records(("margin", "badge")), **ARGUMENTS)
    with pytest.raises(ArgumentError, match="found none"):
        summarise([])


def test_csv_reads_back():
    rows = list(csv.DictReader(io.StringIO(csv_text(summarise(records((NASTY, "random", 'a,"b"')))))))
    assert [row["strategy"] for row in rows] == [NASTY, "random", 'a,"b"']
    assert float(rows[0]["area"]) == pytest.approx(summarise(records((NASTY,))).rows[0].area.mean, rel=1e-5)
    assert rows[1]["saved"] == ""
    assert rows[2]["saved_bound"] == "exact"


def test_markdown_is_a_table_whatever_the_names():
    lines = markdown(summarise(records(("random", NASTY)))).split("\n")
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines[:4]}) == 1
    assert "<script>" not in lines[3]
    assert lines[5].startswith("± is the 95 % t interval")


def test_cells_fit_the_header_and_show_shares_in_per_cent():
    found = summarise(records())
    assert all(len(row) == len(header(found)) for row in cells(found))
    assert header(found)[1] == "accuracy % at 60"
    assert re.fullmatch(r"\d\d\.\d ± \d\.\d", cells(found)[1][1])
    falling = summarise(records(metric="nll"), "nll")
    assert re.fullmatch(r"0\.\d{3} ± 0\.\d{3}", cells(falling)[1][1])
    assert [row.verdict for row in falling.rows] == [row.verdict for row in found.rows]


def test_one_seed_has_values_and_no_spread():
    found = summarise(records(seeds=1))
    assert re.fullmatch(r"\d\d\.\d", cells(found)[1][1])
    assert found.rows[1].verdict == "cannot be compared yet: 1 seed, 5 or more are needed"
    text = page_html(records(seeds=1), **ARGUMENTS)
    assert "One seed: no band can be drawn." in text
    assert "nan" not in re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL).lower()


class Page(HTMLParser):
    """Collects tags, ids and text, and checks that tags are closed in order."""

    void = ("meta", "link", "path", "use", "rect")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.words, self.attributes = [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.void:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.void:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_escapes_every_text():
    text = page_html(records(("random", NASTY, "kcenter")), **ARGUMENTS)
    page = Page(text)
    assert page.open == []
    assert not {"em", "i", "os"} & set(page.tags)
    assert re.findall(r"<script>(.*?)</script>", text, re.DOTALL) == [SCRIPT]
    words = "".join(page.words)
    for piece in (NASTY, "Digits & <b>", "labelwise demo <em> && b", "<i>digits</i>", "<os>"):
        assert piece in words


def test_the_page_is_self_contained():
    text = page_html(records(), **ARGUMENTS)
    page = Page(text)
    assert not {"img", "iframe", "object"} & set(page.tags)
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'\"" in text  # of all scripts, a browser runs this one
    assert re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL) == [SCRIPT]
    links = [value for name, value in page.attributes if name in ("src", "href", "xlink:href")]
    assert all(value.startswith(("#", "data:")) for value in links)
    assert "@import" not in "".join(page.words)
    assert not re.search(r"url\((?!#)", "".join(value or "" for _, value in page.attributes))
    assert len(page.ids) == len(set(page.ids))
    assert ("name", "viewport") in page.attributes
    assert page.tags.count("svg") == 2


def test_the_page_names_the_last_result_and_the_area_of_both():
    found = summarise(records())
    random, margin = found.rows[:2]
    last, area = ([f"{100 * x:.1f} %" for x in pair] for pair in (
        (margin.at[-1].mean, random.at[-1].mean), (margin.area.mean, random.area.mean)
    ))  # fmt: skip
    page = page_html(records(), **ARGUMENTS).replace("\N{NO-BREAK SPACE}", " ")
    assert f"At 120 labels {last[0]}, random {last[1]}; area under the curve {area[0]}, random {area[1]}." in page


def test_the_page_says_the_verdict_first():
    words = [word.strip() for word in Page(page_html(records(), **ARGUMENTS)).words if word.strip()]
    place = next(
        i
        for i, word in enumerate(words)
        if re.match(r"margin is better than random: it saves about \d+\u00a0% of labels \(", word)
    )
    assert place < next(i for i, word in enumerate(words) if word == "The numbers")
    same = [r for r in records() if r.strategy != "margin"]
    twice = same + [dataclasses.replace(r, strategy="twin", run="twin") for r in same if r.strategy == "kcenter"]
    assert "<h1>No strategy is measurably better than random here</h1>" in page_html(twice, **ARGUMENTS)
    assert "<h1>kcenter: no measurable difference from random</h1>" in page_html(same, **ARGUMENTS)
    picked = "picked after the results were known"  # of several strategies; one alone was not picked
    assert picked in page_html(twice, **ARGUMENTS)
    assert picked not in page_html(same, **ARGUMENTS)


@pytest.mark.parametrize(
    ("level", "words"),
    [("common", "that both a strategy and random reach"), ("final", "lower bound"), (0.8, "the level 80.0\u00a0%")],
)
def test_the_page_says_at_which_level_labels_are_counted(level, words):
    assert words in page_html(records(), level=level, **ARGUMENTS)


def test_an_environment_that_differs_is_summed_up():
    text = page_html(records(), **ARGUMENTS)
    assert "7 values, in the records of each run" in text
    assert "<dd>2.13.0</dd>" in text


def test_a_page_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    write_text(path, page_html(records(), **ARGUMENTS))
    old = path.read_text(encoding="utf-8")
    assert old.endswith("</html>\n")

    def full(_):
        raise OSError("no space left")

    monkeypatch.setattr("labelwise.io.files.os.fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write_text(path, page_html(records(("random", "badge")), **ARGUMENTS))
    assert path.read_text(encoding="utf-8") == old
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.html"]


def test_the_figure_is_a_picture_and_an_element():
    by_strategy = learning_curves(records(("random", NASTY, "kcenter")))
    assert png(by_strategy).startswith(b"\x89PNG")
    text = svg(by_strategy)
    root = ET.fromstring(text)
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"random", "kcenter", "labels", "test accuracy"} <= set(words)
    assert any(NASTY[:20] in word for word in words)
    assert "stroke-dasharray" in text
    assert svg(by_strategy) == text
    with pytest.raises(ArgumentError, match="found none"):
        svg({})


@pytest.mark.slow
def test_each_name_is_at_the_end_of_a_line_in_the_stroke_of_its_curve():
    names = ["random", *(f"s{i}" for i in range(15))]
    by_strategy = learning_curves(records(names))
    axes = figures._draw(by_strategy, figures.WIDE, "t95", "random").axes[0]
    curves, leaders = axes.lines[: len(names)], axes.lines[len(names) :: 2]
    line_styles = set()
    for name, curve, leader, text in zip(names, curves, leaders, axes.texts, strict=True):
        assert text.get_text() == name
        assert leader.get_ydata()[-1] == text.get_position()[1]
        end = axes.transAxes.inverted().transform(axes.transData.transform(curve.get_xydata()[-1]))
        np.testing.assert_allclose(leader.get_xydata()[0], end, atol=1e-6)
        assert leader.get_linestyle() == curve.get_linestyle()
        assert leader._unscaled_dash_pattern == curve._unscaled_dash_pattern
        line_styles.add((leader.get_color(), str(leader._unscaled_dash_pattern)))
    assert len(line_styles) == len(names)


def test_colours_and_mathematics_in_names_stay_names():
    text = svg(learning_curves(records(("random", "a: #0072b2", "$x_1$"))))
    assert ">a: #0072b2</text>" in text
    assert ">$x_1$</text>" in text
    assert "var(--line-0, #0072b2)" in text


@pytest.mark.slow
def test_drawing_touches_no_global_state():
    code = (
        "import sys, labelwise.report as r; assert 'matplotlib' not in sys.modules\n"
        "rec = [r.Record('r', 'random', 0, 0, n, {'accuracy': n / 100}) for n in (10, 20)]\n"
        "import matplotlib; keep = lambda: {k: v for k, v in matplotlib.rcParams.copy().items() if k != 'backend'}\n"
        "before = keep()\n"
        "r.png(r.learning_curves(rec)); r.svg(r.learning_curves(rec))\n"
        "assert keep() == before and 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_matplotlib_the_error_has_the_pip_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ExtraError, match=r"pip install .*\[bench\]"):
        png(learning_curves(records()))


@settings(max_examples=100, deadline=None)
@given(wanted=st.lists(st.floats(0, 100), min_size=1, max_size=15), gap=st.floats(0.5, 20))
def test_names_keep_their_distance_and_order(wanted, gap):
    placed = space_out(wanted, gap, 100.0)
    assert min(placed) >= -1e-6
    assert max(placed) <= 100 + 1e-6
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    space = min(gap, 100 / max(1, len(wanted) - 1))
    assert all(placed[b] - placed[a] >= space - 1e-6 for a, b in itertools.pairwise(order))
    if len(wanted) == 1:
        assert placed == wanted
