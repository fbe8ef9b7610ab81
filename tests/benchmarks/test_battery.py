"""The battery of user objects: its programs are comparable, and a wrong outcome counts as a failure."""

from __future__ import annotations

import numpy as np
import pytest

import battery
import battery_objects
import battery_snippets as snippets


def small() -> battery_objects.Case:
    """Rows whose only number is their class."""
    y = np.arange(200) % 2
    return battery_objects.Case("t", "h", {"pool": y[:, None]}, dict(enumerate(y.tolist())), y, lambda ids: y)


ASK = "ids = list(range(60))\nanswer(ids)\npredicted = pool[:, 0]"


def test_every_case_has_programs_of_every_library_with_lines_of_one_length() -> None:
    assert set(snippets.PROGRAMS) == set(battery_objects.CASES)
    for case, programs in snippets.PROGRAMS.items():
        assert set(programs) == set(battery.LIBRARIES), case
        for library, found in programs.items():
            assert found or (case, library) in snippets.ABSENT
            for program in found:
                compile(program, case, "exec")
                assert ";" not in program
                assert max(map(len, snippets.lines(program))) <= 110, (case, library)


@pytest.mark.parametrize(
    ("program", "error"),
    [
        (ASK, ""),
        (ASK.replace("range(60)", "range(59)"), "asked for 59 distinct rows of 59, not 60"),
        (ASK.replace("list(range(60))", "[0, *range(59)]"), "asked for 59 distinct rows of 60, not 60"),
        (ASK.replace("range(60)", "range(200, 260)"), 'KeyError: "200 is not an id of the user\'s, such as 0"'),
        (ASK.replace("pool[:, 0]", "1 - pool[:, 0]"), "worse than random labels: 0.00, random 1.00"),
        (ASK.replace("pool[:, 0]", "pool"), "ValueError: predictions: expected (200,), found (200, 1)"),
    ],
)
def test_the_outcome_decides(program: str, error: str) -> None:
    assert battery.judge(small(), program, 1.0)[1] == error


def test_the_page_has_a_cell_for_each_program_and_the_exact_error() -> None:
    outcomes = [
        {"case": "frame", "library": "Labelwise", "attempt": 0, "lines": 6, "score": 0.9, "error": ""},
        {
            "case": "frame",
            "library": "modAL",
            "attempt": 0,
            "lines": 13,
            "score": None,
            "error": "TypeError: no | frames",
        },
    ]
    outcomes += [{**outcomes[0], "library": name} for name in ("scikit-activeml", "small-text")]
    found = {"frame": {"title": "pandas frame", "holds": "a frame", "random": 0.8, "outcomes": outcomes}}
    page = battery.page(found, {"Python": "3.11"})
    assert "| **pandas frame** | 0.80 | works in 6 lines, 0.90 |" in page
    assert "- pandas frame, modAL: `TypeError: no / frames`" in page


@pytest.mark.parametrize(
    ("scores", "runs", "error"),
    [
        ((0.9, 0.1, 0.1), 1, ""),
        ((0.1, 0.9, 0.8), 3, ""),
        ((0.1, 0.2, 0.9), 3, battery.WORSE),
        ((None,), 1, "TypeError"),
    ],
)
def test_one_unlucky_run_does_not_decide(scores: tuple[float | None, ...], runs: int, error: str) -> None:
    left = list(scores)

    def run() -> battery.Result:
        score = left.pop(0)
        return score, "TypeError" if score is None else battery.WORSE if score < 0.5 else ""

    assert battery.settled(run)[1] == error
    assert len(scores) - len(left) == runs
