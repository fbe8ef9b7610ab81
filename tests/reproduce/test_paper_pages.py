"""A page for each paper, from the pages of its tables and figures."""

import json
import shutil
from pathlib import Path

import pytest

from labelwise.reproduce.paper_pages import PROTOCOLS, claim_rows, write_paper_pages

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "papers"


def test_a_claim_in_parts():
    text = (
        "Words before.\n\n- A (b) lies above C on D: **does not hold** (A 1.0 ± 0.1, C 2.0 ± 0.1; p = 0.01, paired "
        "t-test, 7 seeds); by the paper's own means it holds (A 3.0 ± 0.1, C 2.0).\n"
        "- it takes less time: **holds** (A 0.5 s, B 2 s); in the paper's own numbers it holds (A 202 s, B 732 s).\n"
        "- nothing to say: **cannot be said**.\n"
    )
    first, second, third = claim_rows(text)
    assert (first.claim, first.verdict, first.seeds) == ("A (b) lies above C on D", "does not hold", "7")
    assert (first.paper, first.theirs) == ("holds", "A 3.0 ± 0.1, C 2.0")
    assert (second.ours, second.seeds) == ("A 0.5 s, B 2 s", "one measurement")
    assert (third.verdict, third.ours, third.paper) == ("cannot be said", "", "")


def test_every_claim_of_the_kept_pages_is_on_the_page_of_its_paper(tmp_path):
    for path in RESULTS.glob("*-*.*"):
        if path.suffix in (".json", ".gz"):
            shutil.copy(path, tmp_path)
    write_paper_pages(tmp_path)
    for path in tmp_path.glob("*-*.json"):
        found = json.loads(path.read_text())
        page = (tmp_path / f"{found['name'].split('/')[0]}.md").read_text()
        claims = [line for line in found["verdict"].splitlines() if line.startswith("- ")]
        assert len(claim_rows(found["verdict"])) == len(claims)
        for row in claim_rows(found["verdict"]):
            assert f"| {row.claim} | **{row.verdict}** |" in page
        assert all(command in page for command in found["command"].splitlines())


@pytest.mark.parametrize("paper", PROTOCOLS)
def test_a_protocol_has_six_lines(paper):
    assert len(PROTOCOLS[paper]) == 6
