"""No flipped bit of a session or a project is silent (the full run: benchmarks/flips.py)."""

import json

import pytest

import flips


@pytest.mark.slow
def test_no_flip_is_silent():
    text, bad = flips.page(flips=40, seed=1)
    assert bad == 0, text
    assert "| `store.db` |" in text
    assert "| `answers.jsonl` |" in text


def test_the_check_notices_what_is_silent(tmp_path):
    """Otherwise the test above passes because it is blind."""
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "numbers.json").write_text(json.dumps(list(range(100, 200))))
    found = flips.run(folder, lambda where: json.loads((where / "numbers.json").read_bytes()), 60, seed=0)
    counts = found["numbers.json"]
    assert counts.total() == 60
    assert counts["silent"] > 10  # other numbers
    assert counts["crash"] > 10  # no JSON
