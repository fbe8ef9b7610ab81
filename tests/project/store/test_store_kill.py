"""Killed processes lose no acknowledged answer and write none twice (the full run: benchmarks/kill_store.py)."""

import pytest

import kill_store
from labelwise.project.store import Item, Pick, Round, Store


@pytest.mark.slow
def test_kills_lose_and_duplicate_nothing(store_url):
    outcome = kill_store.run(store_url, annotators=20, processes=4, kills=6, seed=0, gap=0.3, picks=2000)
    assert outcome.is_good(), outcome
    assert outcome.acknowledged >= outcome.kills == 6


def test_the_check_notices_what_is_lost_or_double(tmp_path):
    """Otherwise the test above passes because it is blind."""
    url = f"sqlite:///{tmp_path}/store.db"
    store = Store.create(url)
    store.add_items([Item(0, "a"), Item(1, "b")])
    store.add_round(Round(1, "s", "", 0, 0, {}), [Pick(0, "chosen", 0.0, {}), Pick(1, "chosen", 0.0, {})])
    log, acts = kill_store.Log(), {}
    for who in ("ann", "bob"):
        token = store.next_task(who).token
        acts[who] = {"who": who, "token": token, "do": "answer", "row": 0, "value": who}
        log.hear("try", acts[who])
        log.hear("ack", acts[who] | kill_store._do(store, acts[who]))

    def look():
        return kill_store._look(url, log, kills=0, annotators=2, processes=1, seconds=1.0)

    assert look().is_good()
    gone = acts["ann"] | {"token": "gone"}
    log.hear("try", gone)
    log.hear("ack", gone | {"event": {"seq": 9}})
    assert look().lost == ["gone"]
    del log.acked["gone"]
    assert look().unacknowledged == 1
    store.change("bob", 0, "label", "dog", "more")
    assert look().double == [0]
    assert look().unknown == ["more"]
    log.acked[acts["ann"]["token"]]["event"]["value"] = "other"
    assert look().wrong == [acts["ann"]["token"]]
    store.close()
