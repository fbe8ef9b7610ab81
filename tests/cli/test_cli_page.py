"""Pictures: every text is whole and covers no other, names are told apart, and bands are explained."""

import io
import itertools
import math
import re

import numpy as np
import pytest

pytest.importorskip("matplotlib")
from matplotlib.text import Text

from labelwise.report import figures, rank_diagram
from labelwise.report.figures import panels_png
from labelwise.report.html import STYLE
from labelwise.report.style import COLOURS, INK, PAPER, caption, line_styles, shorten, text_width, wrap_text
from labelwise.reproduce import plots
from labelwise.stats.curves import Curves
from labelwise.stats.metric import metric_named
from labelwise.stats.standings import Ranks

TABLE6 = ("random", "Marg", "Entropy", "Coreset", "Conf", "ALBL", "BADGE", "dynamicAL")
MANY = ("random", *(f"strategy-{i}" for i in range(28)), "oracle")
LONG = "a strategy with a name of very many Words"


def curves(names, seeds=5, metric="accuracy"):
    labels_T = np.arange(1, 6) * 100.0
    noise = np.random.default_rng(0).normal(0, 0.01, (len(names), seeds, 5))
    return {
        name: Curves(name, metric_named(metric), tuple(range(seeds)), labels_T, 0.5 + 0.3 * labels_T / 500 + noise_ST)
        for name, noise_ST in zip(names, noise)
    }


def ranks(names, critical=2.0, spread=4.0):
    mean = tuple(2 + spread * place / (len(names) - 1) for place in range(len(names)))
    return Ranks(tuple(names), mean, 10, 0.01, critical)


PICTURES = {
    "names of table 6": lambda: plots.curve_panels({"SVHN+VGG": curves(TABLE6)}),
    "eight long names": lambda: plots.curve_panels({"one": curves([f"a rather long name {i}" for i in range(8)])}),
    "three panels": lambda: plots.curve_panels({name: curves(TABLE6) for name in ("MNIST", "CIFAR10", "CIFAR100")}),
    "seeds differ": lambda: plots.curve_panels({"MNIST": curves(TABLE6, 3), "SVHN": curves(TABLE6, 1)}),
    "lines": lambda: plots.lines(("title", "x", "y"), {f"CIFAR10+ResNet {i}": ([1, 2], [i, 1]) for i in range(9)}),
    "bars": lambda: plots.bars(
        ("Seconds", "", "seconds"), [*TABLE6[1:7], "BADGE, explicit"], {"SVHN (b=1000)": [0.4] * 6 + [2.5]}, log=True
    ),
    "points": lambda: plots.points({"initial": ([1, 2], [1, 2]), "trained": ([1, 2], [2, 1])}, ("title", "x", "y")),
    "figure": lambda: figures.png(curves(TABLE6)),
    "figure of wide letters": lambda: figures.png(curves(["random", "W" * 27])),
    "figure of many": lambda: figures.png(curves(MANY)),
    "figure of long names": lambda: figures.png(curves(["random", *(f"{i}: {LONG}" for i in range(20))])),
    "panels": lambda: panels_png(curves(MANY)),
    "one panel": lambda: panels_png(curves(["random", LONG], metric="rmse")),
    "diagram": lambda: rank_diagram.png(ranks("abcde"), "Average rank by accuracy over 3 experiments (1 is best)"),
    "diagram of long names": lambda: rank_diagram.png(ranks([f"{LONG} {i}" for i in range(9)]), "Ranks"),
    "diagram of a long title": lambda: rank_diagram.png(ranks("ab"), "Ranks and" + 30 * " ranks"),
    "diagram of many ranks": lambda: rank_diagram.png(ranks(MANY, spread=40.0)),
    "diagram of one rank": lambda: rank_diagram.png(ranks("abc", critical=math.nan, spread=0.0)),
}


@pytest.fixture
def drawn(monkeypatch):
    """The texts that are drawn, each with its box, and the size of the canvas, in pixels."""
    found = {}
    draw = Text.draw

    def remember(self, renderer):
        if self.get_visible() and self.get_text().strip():  # of a layout that is tried first, the last stays
            canvas = renderer.width, renderer.height
            found[id(self)] = (self, self.get_window_extent(renderer).frozen(), canvas)
        draw(self, renderer)

    monkeypatch.setattr(Text, "draw", remember)
    return lambda: [(text.get_text(), box, canvas) for text, box, canvas in found.values()]


def words(drawn):
    return " ".join(text for text, _, _ in drawn()).replace("\n", " ")


@pytest.mark.slow
@pytest.mark.parametrize("name", PICTURES)
def test_every_text_is_inside_of_the_picture_and_covers_no_other(name, drawn):
    assert PICTURES[name]().startswith(b"\x89PNG")
    assert len(drawn()) > 4
    for text, box, (width, height) in drawn():
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, text  # noqa: PT018
    for (one, a, _), (other, b, _) in itertools.combinations(drawn(), 2):
        across, down = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        # Boxes have room for letters that go below the line: those of neighbouring rows may touch.
        assert across <= 0 or down <= 0.25 * min(a.height, b.height), (one, other)


# --- names -----------------------------------------------------------------------------------------------------------


def handles(panels):
    legend = plots._curve_panels(panels, False).legends[0]
    return dict(zip((text.get_text() for text in legend.get_texts()), legend.legend_handles))


def look(line):
    return line.get_color(), str(line._unscaled_dash_pattern), line.get_marker()


def test_every_name_of_a_legend_has_its_own_mark():
    found = handles({"SVHN+VGG": curves(TABLE6)})
    assert set(found) == set(TABLE6)
    assert len({look(line) for line in found.values()}) == len(TABLE6)
    assert len({look(line)[:2] for line in found.values()}) == len(TABLE6)  # without the small markers too


def test_a_name_looks_alike_in_all_panels_and_is_in_the_legend_wherever_it_is():
    panels = {"one": curves(["random", "b"]), "two": curves(["a", "b", "c"])}
    drawn = plots._curve_panels(panels, False)
    assert set(handles(panels)) == {"random", "a", "b", "c"}
    lines = [{line.get_label(): look(line) for line in axes.lines} for axes in drawn.axes]
    assert lines[0]["b"] == lines[1]["b"] == look(handles(panels)["b"])
    assert len({*lines[0].values(), *lines[1].values()}) == 4


def test_the_legend_covers_no_panel():
    drawn, (axes,) = plots._figure(1)
    axes.plot([1, 2], [1, 2], label="a")
    axes.set_xlabel("x")
    plots._legend(drawn, [axes])
    drawn.canvas.draw()
    assert drawn.legends[0].get_window_extent().y1 <= axes.get_tightbbox().y0


def test_random_and_the_oracle_stand_out_among_many():
    axes = figures._draw(curves(MANY), figures.WIDE, "t95", "random").axes[0]
    lines = dict(zip(MANY, axes.lines))
    others = [line for name, line in lines.items() if name not in ("random", "oracle")]
    for name in ("random", "oracle"):
        assert lines[name].get_color() == INK
        assert lines[name].get_linewidth() >= 1.7 * max(line.get_linewidth() for line in others)
        assert lines[name].get_zorder() > max(line.get_zorder() for line in others)
    assert lines["random"]._unscaled_dash_pattern != lines["oracle"]._unscaled_dash_pattern
    assert INK not in {line.get_color() for line in others}


def test_no_two_of_many_lines_look_alike():
    found = line_styles(["oracle", *map(str, range(24)), "random"])
    assert len({(one["color"], str(one["linestyle"])) for one in found.values()}) == 26
    more = line_styles(map(str, range(100)))
    assert len({(one["color"], str(one["linestyle"]), one["marker"]) for one in more.values()}) == 100


# Machado et al. 2009, complete protanopia, deuteranopia and tritanopia, on linear RGB.
SEEN = (
    ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
)


def linear(colour):
    value = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    weights = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    part = np.array(weights) @ rgb.clip(0, 1) / [0.95047, 1, 1.08883]
    x, y, z = np.where(part > 0.008856, np.cbrt(part), 7.787 * part + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one, other):
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_are_told_apart_by_the_colour_blind_too(scheme):
    part = STYLE.split("@media (prefers-color-scheme: dark)")[scheme == "dark"]
    values = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", part)[:20])
    lines = [values[f"line-{i}"] for i in range(len(COLOURS))]
    if scheme == "light":
        assert (*lines, values["ink"], values["paper"]) == (*COLOURS, INK, PAPER)
    assert min(contrast(colour, values["paper"]) for colour in lines) >= 3
    for one, other in itertools.combinations([*lines, values["ink"]], 2):
        apart = [np.linalg.norm(lab(np.array(m) @ linear(one)) - lab(np.array(m) @ linear(other))) for m in SEEN]
        assert min(apart) > 13, (one, other)


# --- bands -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_picture_says_what_its_bands_are(drawn):
    plots.curve_panels({"one": curves(TABLE6)})
    assert "Mean over 5 seeds; shaded: standard error of the mean over seeds." in words(drawn)
    figures.png(curves(TABLE6, 7))
    assert "Mean over 7 seeds; shaded: 95 % t interval of the mean over seeds." in words(drawn)
    panels_png(curves(TABLE6, 6), "std")
    assert "Mean over 6 seeds; shaded: standard deviation over seeds." in words(drawn)


@pytest.mark.slow
def test_of_many_lines_the_picture_says_whose_bands_it_has(drawn):
    many = curves(MANY)
    figures.png(many)
    shaded = figures.banded_strategies(many, "random")
    assert f"shaded (of {', '.join(shaded)}): 95 % t interval" in words(drawn)
    assert f"shaded (of {', '.join(shaded)}): 95 % t interval" in figures.svg(many)


@pytest.mark.slow
def test_one_seed_has_no_band_and_panels_of_other_seeds_say_so(drawn):
    plots.curve_panels({"one": curves(TABLE6, 1)})
    assert "One seed: no band can be drawn." in words(drawn)
    plots.curve_panels({"MNIST": curves(TABLE6, 3), "SVHN": curves(TABLE6, 1)})
    said = "Mean over 1 to 3 seeds; shaded: standard error of the mean over seeds; a line of one seed has no band."
    assert said in words(drawn)
    assert "MNIST, 3 seeds" in words(drawn)
    assert "SVHN, 1 seed" in words(drawn)
    assert caption(list(curves(["a"], 2).values()), "se") == (
        "Mean over 2 seeds; shaded: standard error of the mean over seeds."
    )


# --- the diagram, and room for texts ---------------------------------------------------------------------------------


def test_the_critical_difference_stays_inside_and_true_to_scale():
    found = rank_diagram._draw(ranks("abc", critical=9.5, spread=1.0), "Ranks")
    axes = found.axes[0]
    right = axes.get_xlim()[1]
    assert all(max(line.get_xdata()) <= right for line in axes.lines)
    scale, bar = axes.lines[0], next(line for line in axes.lines if list(line.get_ydata()) == [0.42, 0.42])
    unit = np.ptp(scale.get_xdata()) / 1  # ranks 2 to 3
    assert np.ptp(bar.get_xdata()) / unit == pytest.approx(9.5)


def test_texts_are_measured_as_they_are_drawn(drawn):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    for text in ("illicit", "WWMM", "$x_1$ of y"):
        page = Figure(figsize=(6, 1), dpi=300)
        FigureCanvasAgg(page)
        page.text(0.1, 0.5, text, fontsize=12, parse_math=False)
        page.savefig(io.BytesIO(), dpi=300)
        box = next(box for found, box, _ in drawn() if found == text)
        assert box.width / 300 <= text_width(text, 12) <= 1.1 * box.width / 300
    assert text_width("", 12) == text_width(" ", 12) == 0


def test_a_text_is_put_on_lines_that_fit():
    text = "shaded of random and of many others that take their room"
    found = wrap_text(text, 1.5, 10)
    assert found.replace("\n", " ") == text
    assert found.count("\n") >= 2
    assert max(text_width(line, 10) for line in found.splitlines()) <= 1.5
    assert wrap_text("unbreakable", 0.1, 10) == "unbreakable"
    assert wrap_text("", 1, 10) == ""
    assert shorten("abcdef", 4) == "abc…"
    assert shorten("abcd", 4) == "abcd"
