"""Charts: they stay inside of their frame, tell their numbers on hover, and escape every name."""

import math
import re
import xml.etree.ElementTree as ET

import pytest

from labelwise.report.charts import (
    NARROW,
    WIDE,
    Line,
    Point,
    confusion_table,
    line_chart,
    looks,
    round_values,
    scatter,
    share_bar,
)

NASTY = '<script>"&'


def show(value):
    return f"{value:.3g}"


def charts(lines, share=False):
    found = line_chart(lines, "A chart", show, share)
    return [ET.fromstring(part) for part in re.findall(r"<svg.*?</svg>", found, re.DOTALL)]


@pytest.mark.parametrize(
    "points",
    [
        [Point(10, 1.0, 1.0, 1.0), Point(20, 1.0, 1.0, 1.0)],
        [Point(10, 0.0, 0.0, math.inf), Point(20, 0.0, 0.0, math.inf)],
        [Point(5, 1200.0, 3.0, math.inf), Point(6, 0.5, 0.1, 5e4)],
        [Point(5, 0.5, math.nan, math.nan)],
        [Point(10, -3.0, -4.0, -2.0), Point(400, 2.0, 1.0, 3.0)],
    ],
)
def test_a_curve_stays_inside_its_frame(points):
    for picture, frame in zip(charts([Line("a", points, "red")]), (WIDE, NARROW), strict=True):
        for shape in picture.iter():
            for name in ("x", "x1", "x2", "cx"):
                assert -1 <= float(shape.get(name, 0)) <= frame.width
            for name in ("y", "y1", "y2", "cy"):
                assert -1 <= float(shape.get(name, 0)) <= frame.height
            for pair in shape.get("points", "").split():
                x, y = map(float, pair.split(","))
                assert 0 <= x <= frame.width
                assert 0 <= y <= frame.height


def test_on_hover_each_number_of_labels_has_every_line_that_covers_it():
    lines = [
        Line("own", [Point(10, 0.2, 0.1, 0.3), Point(20, 0.4, 0.3, 0.5)], "red"),
        Line("random", [Point(5, 0.1, 0.0, 0.2), Point(15, 0.3, 0.2, 0.4, ", extrapolated")], "blue"),
    ]
    wide, _ = charts(lines)
    tips = [one.get("data-tip") for one in wide.iter() if one.get("class") == "hit"]
    assert tips == [
        "5 labels\nrandom: 0.1 (0 to 0.2)",
        "10 labels\nown: 0.2 (0.1 to 0.3)\nrandom: 0.2 (0.1 to 0.3), extrapolated",
        "15 labels\nown: 0.3 (0.2 to 0.4), between two measured points\nrandom: 0.3 (0.2 to 0.4), extrapolated",
        "20 labels\nown: 0.4 (0.3 to 0.5)",
    ]


def test_names_are_escaped_and_lines_look_different():
    assert NASTY not in line_chart([Line(NASTY, [Point(1, 0.5, 0.4, 0.6)], "red")], NASTY, show)
    assert NASTY not in confusion_table([NASTY, "b"], [[1, 2], [0, 3]])
    assert NASTY not in scatter([(1.0, 2.0, NASTY), (2.0, 1.0, "b")], show, NASTY)
    assert NASTY not in share_bar(0.5, 0.2, 0.7, NASTY)
    names = ["random", "oracle", *map(str, range(24))]
    assert len(set(looks(names, "random").values())) == len(names)


def test_a_confusion_matrix_has_its_counts_and_shades_by_the_row():
    table = confusion_table(["a", "b"], [[9, 1], [0, 0]])
    cells = re.findall(r'<td class="(\w+) heat-(\d)" data-tip="([^"]*)">(\d*)</td>', table)
    assert [(kind, heat, count) for kind, heat, _, count in cells] == [
        ("right", "9", "9"), ("wrong", "1", "1"), ("wrong", "0", ""), ("right", "0", ""),
    ]  # fmt: skip
    assert cells[1][2] == "1 of 10 test items of a are predicted b"


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 2.0), (0.911, 0.912), (5.0, 8000.0)])
def test_round_values_are_inside_and_few(low, high):
    found = round_values(low, high, 5)
    assert 1 <= len(found) <= 6
    assert all(low - 1e-9 <= value <= high + 1e-9 for value in found)
