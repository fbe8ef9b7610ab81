"""Random sequences of calls by several people through two stores, against a model in plain lists and dicts."""

import itertools
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from labelwise.errors import StoreError
from labelwise.project.store import Item, Pick, Round, Store

ITEMS = 9
PEOPLE = ["ann", "bob", "eve"]
VALUES = ["x", "y"]
people = st.sampled_from(PEOPLE)
answers = st.one_of(
    st.tuples(st.just("label"), st.sampled_from(VALUES)),
    st.sampled_from([("skip", None), ("unsure", None)]),
)


@dataclass
class Model:
    """All that was done, in order. Everything is computed from the start each time: slow, and easy to believe."""

    people: int
    order: list[int] = field(default_factory=list)  # rows picked, in order
    round_of: dict[int, int] = field(default_factory=dict)
    log: list[dict] = field(default_factory=list)  # what was done; number n is at n - 1
    leases: dict[tuple[int, str], dict] = field(default_factory=dict)

    def live(self, upto: int) -> list[dict]:
        done = self.log[:upto]
        undone = {one["undoes"] for one in done if one["kind"] == "undo"}
        return [one for one in done if one["seq"] not in undone and one["kind"] != "undo"]

    def says(self, row: int, upto: int | None = None) -> dict[str, tuple[str, str | None]]:
        found = {}
        for one in self.live(len(self.log) if upto is None else upto):
            if one["row"] == row:
                found.pop(one["who"], None)  # the latest answer comes last
                found[one["who"]] = ("label" if one["kind"] == "import" else one["kind"], one["value"])
        return found

    def stands(self, row: int, upto: int | None = None):
        said = self.says(row, upto)
        if not said:
            return None
        counted = [answer for answer in said.values() if answer[0] != "skip"]
        counts = Counter(counted[-1:] if self.people == 1 else counted).most_common()
        if not counts:
            return ("skip", None)
        if len(counts) > 1 and counts[0][1] == counts[1][1]:
            return ("split", None)
        return counts[0][0]

    def known(self, number: int) -> set[str]:
        mine = [one for one in self.log if one["kind"] in ("label", "skip", "unsure")]
        return {one["who"] for one in mine if self.round_of.get(one["row"]) == number and one["in_round"]}

    def closed(self, row: int) -> bool:
        said = self.says(row)
        if sum(kind != "skip" for kind, _ in said.values()) >= self.people:
            return True
        return any(kind == "skip" for kind, _ in said.values()) and self.known(self.round_of[row]) <= set(said)

    def leased_by_others(self, row: int, who: str) -> set[str]:
        said = self.says(row)
        return {p for (r, p), one in self.leases.items() if r == row and p != who and one["good"] and p not in said}

    def free(self, row: int, who: str) -> bool:
        given = sum(kind != "skip" for person, (kind, _) in self.says(row).items() if person != who)
        return not self.closed(row) and given + len(self.leased_by_others(row, who)) < self.people

    def next_row(self, who: str) -> int | None:
        mine = [(row, one) for (row, person), one in self.leases.items() if person == who and one["good"]]
        redo = [(one["made"], row) for row, one in mine if one["redo"]]
        if redo:
            return max(redo)[1]
        plain = [(one["made"], row) for row, one in mine if not self.closed(row) and who not in self.says(row)]
        if plain:
            return min(plain)[1]
        return next((row for row in self.order if who not in self.says(row) and self.free(row, who)), None)

    def write(self, **one) -> None:
        self.log.append({"seq": len(self.log) + 1, "in_round": one["row"] in self.round_of, **one})


class Machine(RuleBasedStateMachine):
    new_url = None

    def __init__(self):
        RuleBasedStateMachine.__init__(self)
        self.clock = itertools.count()
        self.tokens = itertools.count()

    @initialize(count=st.sampled_from([1, 1, 2]))
    def start(self, count):
        url = type(self).new_url()
        self.stores = [Store.create(url, people=count), Store.open(url)]
        self.model = Model(count)
        self.used = {}  # token -> event
        self.stores[0].add_items(Item(row, str(row)) for row in range(ITEMS))
        self.add_round(0, 4)

    def teardown(self):
        for store in getattr(self, "stores", []):
            store.close()

    @rule(which=st.integers(0, 1), size=st.integers(1, 3))
    def add_round(self, which, size):
        rows = [row for row in range(ITEMS - 1, -1, -1) if row not in self.model.round_of][:size]
        number = 1 + max(self.model.round_of.values(), default=0)
        if rows:
            self.stores[which].add_round(
                Round(number, "s", "m", 0, 0, {}), [Pick(row, "test", 0.0, {}) for row in rows]
            )
            self.model.order += rows
            self.model.round_of |= dict.fromkeys(rows, number)

    @rule(which=st.integers(0, 1), who=people, lasts=st.sampled_from([600.0, 600.0, 0.0]))
    def next_task(self, which, who, lasts):
        expected = self.model.next_row(who)
        task = self.stores[which].next_task(who, lease_seconds=lasts)
        assert (None if task is None else task.row) == expected
        if task is None:
            return
        before = self.model.leases.get((task.row, who))
        if before is None:
            before = {"redo": False, "made": next(self.clock)}
        elif not before["good"]:
            before["made"] = next(self.clock)  # an old one is given anew, with its token
        if "token" in before:
            assert task.token == before["token"]
        assert task.redo == before["redo"]
        self.model.leases[task.row, who] = before | {"good": lasts > 0, "token": task.token}

    def _tokens(self, who):
        return [(row, one) for (row, person), one in self.model.leases.items() if person == who and "token" in one]

    @rule(which=st.integers(0, 1), who=people, said=answers, index=st.integers(0, 9))
    def answer(self, which, who, said, index):
        leased = self._tokens(who)
        if not leased:
            return
        row, one = leased[index % len(leased)]
        if not (one["good"] or self.model.free(row, who)):
            with pytest.raises(StoreError, match="went to"):
                self.stores[which].answer(one["token"], who, *said, 1.0)
            return
        event = self.stores[which].answer(one["token"], who, *said, 1.0)
        assert (event.row, event.kind, event.value) == (row, *said)
        self.used[one["token"]] = event
        del self.model.leases[row, who]
        self.model.write(who=who, kind=said[0], row=row, value=said[1])

    @rule(which=st.integers(0, 1), who=people, said=st.lists(answers, min_size=1, max_size=3))
    def work(self, which, who, said):
        """What happens most: ask, answer, ask, answer."""
        for one in said:
            self.next_task(which, who, 600.0)
            row = self.model.next_row(who)
            leased = [row for row, _ in self._tokens(who)]
            if row is not None:
                self.answer(1 - which, who, one, leased.index(row))

    @precondition(lambda self: self.used)
    @rule(which=st.integers(0, 1), index=st.integers(0, 99), said=answers)
    def answer_again(self, which, index, said):
        event = list(self.used.values())[index % len(self.used)]
        assert self.stores[which].answer(event.token, event.who, *said, 5.0) == event

    @rule(
        which=st.integers(0, 1),
        who=people,
        lasts=st.lists(st.sampled_from([600.0, 600.0, 0.0]), min_size=1, max_size=3),
    )
    def undo(self, which, who, lasts):
        for one in lasts:
            self._undo(which, who, one)

    def _undo(self, which, who, lasts):
        mine = [one for one in self.model.live(len(self.model.log)) if one["who"] == who and one["kind"] != "import"]
        event = self.stores[which].undo(who, lease_seconds=lasts)
        if not mine:
            assert event is None
            return
        last = mine[-1]
        assert (event.row, event.undoes) == (last["row"], last["seq"])
        self.model.write(who=who, kind="undo", row=last["row"], value=None, undoes=last["seq"])
        if last["row"] in self.model.round_of:
            before = self.model.leases.get((last["row"], who), {})
            fresh = {"redo": True, "made": next(self.clock), "good": lasts > 0}
            self.model.leases[last["row"], who] = before | fresh

    @rule(which=st.integers(0, 1), who=people, row=st.integers(0, ITEMS - 1), said=answers)
    def change(self, which, who, row, said):
        answered = [one["row"] for one in self.model.log if one["who"] == who]
        row = answered[row % len(answered)] if answered and row % 2 else row  # mostly one's own
        token = f"change {next(self.tokens)}"
        event = self.stores[which].change(who, row, *said, token)
        assert self.stores[1 - which].change(who, row, "unsure", None, token) == event
        self.model.leases.pop((row, who), None)
        self.model.write(who=who, kind=said[0], row=row, value=said[1])

    @rule(
        which=st.integers(0, 1),
        who=st.sampled_from(["csv", "ann"]),
        labels=st.dictionaries(st.integers(0, ITEMS - 1), st.sampled_from(VALUES), max_size=3),
    )
    def import_labels(self, which, who, labels):
        new = {row: value for row, value in labels.items() if self.model.says(row).get(who) != ("label", value)}
        assert self.stores[which].import_labels(list(labels.items()), who) == len(new)
        for row, value in new.items():
            self.model.write(who=who, kind="import", row=row, value=value)

    @rule(which=st.integers(0, 1), who=people)
    def release(self, which, who):
        self.stores[which].release(who)
        for (_, person), one in self.model.leases.items():
            if person == who:
                one["good"] = False

    @rule(which=st.integers(0, 1), upto=st.integers(0, 20))
    def look_back(self, which, upto):
        self._same(self.stores[which].answers(upto=upto), min(upto, len(self.model.log)))

    @invariant()
    def the_stores_agree_with_the_model(self):
        if not hasattr(self, "stores"):
            return
        store = self.stores[len(self.model.log) % 2]  # in turn: each has to catch up with what the other wrote
        self._same(store.answers(), len(self.model.log))
        progress = store.progress()
        number = max(self.model.round_of.values())
        rows = [row for row in self.model.order if self.model.round_of[row] == number]
        assert (progress.round, progress.picks) == (number, len(rows))
        assert progress.answered == sum(self.model.closed(row) for row in rows)
        assert progress.labels == sum((self.model.stands(row) or ("", 0))[0] == "label" for row in range(ITEMS))
        assert progress.leased == sum(one["good"] for one in self.model.leases.values())

    def _same(self, found, upto):
        expected = {row: self.model.stands(row, upto) for row in range(ITEMS)}
        assert {row: (answer.kind, answer.value) for row, answer in found.items()} == {
            row: stands for row, stands in expected.items() if stands is not None
        }
        for row, answer in found.items():
            said = self.model.says(row, upto)
            assert answer.votes == {who: value for who, (kind, value) in said.items() if kind == "label"}
            assert answer.slice == ("test" if row in self.model.round_of else None)
            assert answer.seq == max(one["seq"] for one in self.model.log[:upto] if one["row"] == row)


def run(new_url, examples: int) -> None:
    machine = type("ThisMachine", (Machine,), {"new_url": staticmethod(new_url)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.slow
def test_sqlite_does_what_the_model_does():
    numbers = itertools.count()
    memory = Path("/dev/shm")  # what is asked here is what is written, not when it is on disk
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        run(lambda: f"sqlite:///{folder}/store{next(numbers)}.db", examples=40)


@pytest.mark.slow
def test_postgresql_does_what_the_model_does(postgres):
    run(postgres.url, examples=12)
