"""Sessions and rounds on rows that are named by texts, tuples and the like."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import labelwise as lw
from labelwise import errors
from labelwise.stats.record import from_json

X = np.random.default_rng(0).normal(size=(60, 3))
Y = (X[:, 0] > 0).astype(int)
NAMES = [f"row-{number}" for number in range(60)]
LABEL = dict(zip(NAMES, Y.tolist()))


def session(order: np.ndarray | None = None, folder: Path | None = None, resume: bool = False) -> lw.Session:
    order = np.arange(60) if order is None else order
    pool = lw.Pool.of(X[order], ids=[NAMES[row] for row in order])
    return lw.Session(pool, LogisticRegression(), "margin", classes=2, folder=folder, resume=resume)


def test_ask_gives_the_keys_and_tell_takes_them() -> None:
    al = session()
    picks = al.ask(5)
    assert set(picks.ids.tolist()) < set(NAMES)
    al.tell(picks.ids, [LABEL[key] for key in picks.ids])
    assert sorted(al.labelled) == sorted(picks.ids)
    assert set(al.free.tolist()) == set(NAMES) - set(picks.ids.tolist())
    assert al.history_table()["ids"] == [picks.ids.tolist()]
    assert al.predict(ids=["row-3", "row-1"]).tolist() == al.predict(X[[3, 1]]).tolist()


def test_picks_do_not_depend_on_the_order_of_the_rows() -> None:
    one, other = session(), session(np.random.default_rng(1).permutation(60))
    for _ in range(3):
        picks, same = one.ask(4), other.ask(4)
        assert picks == same
        for al in (one, other):
            al.tell(picks.ids, [LABEL[key] for key in picks.ids])


def test_a_saved_session_continues_with_its_keys(tmp_path: Path) -> None:
    al = session(folder=tmp_path)
    picks = al.ask(4)
    al.tell(picks.ids, [LABEL[key] for key in picks.ids])
    again = session(np.arange(60)[::-1], tmp_path, resume=True)  # rows may come in another order
    assert again.labelled.tolist() == picks.ids.tolist()
    assert again.ask(4) == al.ask(4)
    line = json.loads((tmp_path / "answers.jsonl").read_text())
    assert line["keys"] == picks.ids.tolist()
    renamed = lw.Pool.of(X, ids=[name.upper() for name in NAMES])
    with pytest.raises(errors.StoreError, match="the content of the pool"):
        lw.Session.load(tmp_path, renamed, LogisticRegression())


def test_unknown_and_repeated_keys_are_refused() -> None:
    al = session()
    with pytest.raises(errors.RowError, match="1 ids are not in the pool of 60 rows: 'who'"):
        al.tell(["row-1", "who"], [0, 1])
    with pytest.raises(errors.RowError, match="id 'row-1' is told twice"):
        al.tell(["row-1", "row-1"], [0, 1])
    assert len(al.labelled) == 0


def test_rounds_ask_the_oracle_for_keys_and_record_them() -> None:
    seen: list[str] = []

    def oracle(keys: np.ndarray) -> list[int]:
        seen.extend(keys.tolist())
        return [LABEL[key] for key in keys]

    pool = lw.Pool.of(X, ids=NAMES)
    records = list(lw.rounds(pool, oracle, LogisticRegression(), "margin", k=4, n=2, classes=2))
    assert set(seen) < set(NAMES)
    assert set(records[0].picked) < set(NAMES)
    assert from_json(records[0].to_json()).picked == records[0].picked
    known = list(lw.rounds(pool, Y, LogisticRegression(), "margin", k=4, n=2))
    assert [record.picked for record in known] == [record.picked for record in records]


def test_tuples_are_keys() -> None:
    pool = lw.Pool.of(X[:6], ids=[("site", number) for number in range(6)])
    al = lw.Session(pool, recipe="random", classes=2)
    picks = al.ask(2)
    al.tell(picks.ids, [0, 1])
    assert al.labelled.tolist() == picks.ids.tolist()
    assert isinstance(picks.ids[0], tuple)


def test_small_integers_of_numpy_do_not_overflow_a_plan() -> None:
    records = list(lw.rounds(X, Y, LogisticRegression(), "random", k=np.int8(12), n=np.int8(3)))
    assert [record.labels for record in records] == [12, 24, 36, 48]
    with pytest.raises(errors.BudgetError, match="60 labels"):
        lw.rounds(X, Y, LogisticRegression(), "random", k=np.int8(15), n=np.int8(3))
