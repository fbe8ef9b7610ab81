"""Hostile requests are refused (the full run: benchmarks/probes.py), and the script notices one that is not."""

import pytest

import probes


@pytest.mark.slow
def test_hostile_requests_are_refused(tmp_path):
    families = ["roles and revoked links", "cookies and tokens", "posts of other sites", "markup in names"]
    found, wrong = probes.attack(tmp_path, only=families)
    assert wrong == []
    assert list(found) == [family for family in probes.FAMILIES if family in families]
    assert sum(counts["probes"] for counts in found.values()) > 300


def test_a_reply_that_must_not_be_is_noticed():
    page = probes.Reply(200, "HTTP/1.1 200 OK", "<main>")
    assert not probes.refused()(page)
    assert not probes.refused(401)(probes.Reply(403, "", ""))
    assert not probes.refused()(probes.Reply(404, "", "root:x:0:0"))
    assert not probes.refused()(probes.Reply(0, "", ""))
    assert not probes.not_an_error(probes.Reply(500, "", ""))
    assert not probes.not_an_error(probes.Reply(200, "HTTP/1.1 200\r\nSet-Cookie: a=b", ""))
    assert probes.refused(401)(probes.Reply(401, "", "Open the full link"))
