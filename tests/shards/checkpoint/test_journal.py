"""The journal of a selection: within the limit on memory, of one selection alone, and clear about damage."""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import labelwise as lw
from killed import killed_at
from labelwise.errors import ArgumentError, StoreError
from labelwise.io.checked import write_checked
from labelwise.rng import Key
from labelwise.selection.run import RunOptions
from labelwise.shards import Shards, shards_of
from labelwise.shards.checkpoint import fingerprint, journal, state
from labelwise.shards.checkpoint.fingerprint import object_fingerprint
from labelwise.shards.checkpoint.journal import FolderJournal
from labelwise.shards.checkpoint.log import Answers
from labelwise.signals.spec import Duals, Embedding
from tuned import AFTER_EVERY_ANSWER

NONE = Shards([])
H = np.random.default_rng(0).normal(size=(120, 4)).astype("float32")


@pytest.fixture(autouse=True)
def _saved_after_every_answer(monkeypatch):
    monkeypatch.setattr(journal.FolderJournal, "tuning", AFTER_EVERY_ANSWER)


def _begun(folder, monkeypatch, name="kcenter", at=20, **more):
    killed_at(at, lambda: lw.select(name, 12, embedding=H, folder=folder, **more))
    assert (folder / "progress.json").exists()


_LARGE = """
    import ctypes, gc, os, resource, sys
    import numpy as np, torch
    import labelwise as lw
    from labelwise.selection.selection import equal_weights
    from labelwise.shards.checkpoint import journal

    torch.set_num_threads(1)
    dies = 0

    class Large(lw.Strategy):
        needs = lw.strategies.get("kcenter").needs
        def select(self, pool, labelled, k, key):
            for step in range(60):
                pool.sum(lambda shard: torch.full((500_000,), float(step)))  # 2 MB
                if step + 1 == dies:
                    os._exit(7)
            return equal_weights(pool.best(lambda shard: key.uniform(shard.ids), k).ids, torch.zeros(k))

    H = np.zeros((1000, 4), dtype="float32")
    lw.select(Large(), 2, embedding=H[:10], max_memory="1GB")  # what is loaded once
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/status") as status:
        held = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (held + 40_000_000,) * 2)
    folder, dies = sys.argv[1], int(sys.argv[2])
    journal.FolderJournal.tuning = journal.Tuning(0.0 if dies else 1e9, float("inf"))
    print(lw.select(Large(), 2, embedding=H, folder=folder, max_memory="35MB").ids.tolist())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a hard limit on private memory is Linux's")
def test_answers_are_not_held_in_memory_neither_when_written_nor_when_read_back(tmp_path):
    """120 MB of answers under a hard limit of 40 MB: begun, killed near the end, gone on with."""

    def run(dies):
        command = [sys.executable, "-c", textwrap.dedent(_LARGE), str(tmp_path / "j"), str(dies)]
        return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})

    assert run(55).returncode == 7
    assert (tmp_path / "j" / "answers.bin").stat().st_size > 100_000_000
    again, whole = run(0), run(0)
    assert again.returncode == 0, again.stderr
    assert whole.returncode == 0, whole.stderr
    assert again.stdout == whole.stdout


def test_answers_come_back_as_they_were(tmp_path):
    base = torch.arange(1000.0)
    answers = [
        [base[10:20], base.view(10, 100)[:, 3], torch.tensor(2.5), torch.empty(0, 3)],
        [(torch.tensor([True, False]), torch.ones(2, dtype=torch.bfloat16), torch.arange(3)), {"a": 1.5}, None],
    ]
    file = Answers(tmp_path / "a")
    for one in answers:
        file.write(one)
    size, checksum = file.sync()
    assert size < 3000  # of a view what it shows, not all that is behind it
    file.write("not noted any more")
    file.close()
    again = Answers(tmp_path / "a", size, checksum)
    got = [again.read() for _ in answers]
    again.write(["one more"])
    again.close()
    for one, other in zip(got[0], answers[0]):
        assert torch.equal(one, other)
    for one, other in zip(got[1][0], answers[1][0]):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype
    assert got[1][1:] == answers[1][1:]


def test_columns_that_a_selection_made_are_kept_too(tmp_path, monkeypatch):
    """ALLY predicts duals: killed after that, it goes on with them; with a cap, given ones are changed."""
    rng = np.random.default_rng(1)
    past = {"embedding": rng.normal(size=(30, 4)).astype("float32"), "duals": rng.exponential(size=30)}
    ways = [
        ("ally", {"labelled": past}),
        (lw.strategies.Ally(cap=1.0), {"duals": rng.exponential(size=120).astype("float32")}),
    ]
    for number, (strategy, given) in enumerate(ways):
        folder = tmp_path / str(number)
        _begun(folder, monkeypatch, strategy, **given)
        got = lw.select(strategy, 12, embedding=H, folder=folder, **given)
        assert got.ids.tolist() == lw.select(strategy, 12, embedding=H, **given).ids.tolist()


def test_a_lost_shard_is_given_back_all_that_was_changed():
    (shard,) = shards_of(torch.arange(3), {Embedding(): torch.ones(3, 2)}).map(lambda one: one)
    shard.state["near"], shard.made[Duals()], shard.shift[Embedding()] = torch.ones(3), torch.zeros(3), torch.ones(2)
    (other,) = shards_of(torch.arange(3), {Embedding(): torch.ones(3, 2)}).map(lambda one: one)
    other.state["old"] = torch.ones(3)
    other.restore(shard.snapshot())
    assert set(other.state) == {"near"}
    rows = other.rows(slice(None))
    assert torch.equal(rows.columns[Duals()], torch.zeros(3))
    assert torch.equal(rows.columns[Embedding()], torch.zeros(3, 2))


class Own(lw.strategies.Margin):
    """A strategy of a user's own, whose repr shows no parameter."""

    def __init__(self, what):
        self.what = what


def _identities(*values):
    return [object_fingerprint(Own(value)) for value in values]


def test_strategies_are_told_apart_by_all_they_hold(tmp_path, monkeypatch):
    class Deep:
        def __init__(self, inner):
            self.inner = inner

    apart = _identities(
        1, 1.0, "1", None, (1,), [1], {1: 2}, {1: 3}, np.arange(3), np.arange(3.0), np.arange(4), torch.ones(2),
        torch.zeros(2), Deep(1), Deep(2), Deep([1, np.ones(2)]), lambda x: x, lambda x: x + 1, np.sum, np.mean,
    )  # fmt: skip
    assert len(set(apart)) == len(apart)
    same = [{"b", "a"}, np.arange(5), Deep({"x": torch.ones(3)}), lambda x: x * 2, 3]
    assert _identities(*same) == _identities(*same)
    with pytest.raises(ArgumentError, match=r"Own\.what is or holds .*generator.*select without folder="):
        object_fingerprint(Own(one for one in "abc"))
    looped = Own(None)
    looped.what = looped
    with pytest.raises(ArgumentError, match="holds itself"):
        object_fingerprint(looped)


class Rooted(lw.strategies.Margin):
    """Holds what cannot be told from another of its kind."""

    def __init__(self):
        self.lock = threading.Lock()


def test_a_session_with_a_strategy_that_cannot_be_told_goes_without_a_journal(tmp_path):
    with pytest.raises(ArgumentError, match=r"Rooted\.lock is or holds"):
        lw.select(Rooted(), 2, probs=np.full((5, 2), 0.5), folder=tmp_path / "j")
    session = lw.Session(H, LogisticRegression(), Rooted(), classes=2, folder=tmp_path / "s")
    session.tell(np.arange(10), np.arange(10) % 2)
    assert len(session.ask(3)) == 3


class Pulled(lw.strategies.KCenter):
    """Another parameter, the same repr."""

    def __init__(self, pull):
        self.pull = pull


def test_a_strategy_of_ones_own_with_another_parameter_is_refused(tmp_path, monkeypatch):
    _begun(tmp_path / "j", monkeypatch, Pulled(1))
    with pytest.raises(StoreError, match=r"another selection \(it differs in parameters\)"):
        lw.select(Pulled(2), 12, embedding=H, folder=tmp_path / "j")
    assert len(lw.select(Pulled(1), 12, embedding=H, folder=tmp_path / "j")) == 12


@pytest.mark.parametrize("row", [0, 1, 59, 118, 119])
def test_a_change_of_any_row_is_seen(row, tmp_path, monkeypatch):
    _begun(tmp_path / "j", monkeypatch)
    other = H.copy()
    other[row, 3] += 1
    with pytest.raises(StoreError, match="differs in rows"):
        lw.select("kcenter", 12, embedding=other, folder=tmp_path / "j")


def test_of_a_long_column_rows_from_the_first_to_the_last_count():
    assert [row for run in fingerprint._runs(1000, 400) for row in range(run.start, run.stop)] == list(range(1000))
    runs = list(fingerprint._runs(1003, 400, 40_000, 4_000))
    assert len(runs) == 10
    assert runs[0] == slice(0, 10)
    assert runs[-1] == slice(1000, 1003)
    assert sorted({b.start - a.start for a, b in itertools.pairwise(runs)}) == [110, 120]
    assert list(fingerprint._runs(3, 10**6, 40_000, 4_000)) == [slice(0, 1)]


def test_two_selections_do_not_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(journal.FolderJournal, "tuning", replace(AFTER_EVERY_ANSWER, lock_timeout=0.05))
    pool = shards_of(torch.arange(120), {Embedding(): torch.from_numpy(H)})
    with contextlib.closing(FolderJournal(tmp_path / "j", {"k": 1}, pool, NONE)) as first:
        with pytest.raises(StoreError, match="locked by another process"):
            FolderJournal(tmp_path / "j", {"k": 1}, pool, NONE)
        assert (tmp_path / "j" / "answers.bin").exists()
        pool.with_journal(first).map(len)
    with contextlib.closing(FolderJournal(tmp_path / "j", {"k": 1}, pool, NONE)) as second:
        assert second.found == 1


def test_what_the_journal_did_not_write_stays(tmp_path, monkeypatch):
    for name in ("made", "mine"):
        folder = tmp_path / name
        if name == "mine":
            folder.mkdir()
        _begun(folder, monkeypatch)
        (folder / "thesis.txt").write_text("text")
        (folder / "state-of-things.pt").write_text("text")
        lw.select("kcenter", 12, embedding=H, folder=folder)
        assert sorted(path.name for path in folder.iterdir()) == ["state-of-things.pt", "thesis.txt"]
    (tmp_path / "empty").mkdir()
    lw.select("kcenter", 12, embedding=H, folder=tmp_path / "empty")
    assert not list((tmp_path / "empty").iterdir())
    _begun(tmp_path / "new", monkeypatch)
    lw.select("kcenter", 12, embedding=H, folder=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_an_error_before_the_first_kept_state_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(journal.FolderJournal, "tuning", journal.Tuning(every=100.0))
    bad = H.copy()
    bad[7, 1] = np.nan
    with pytest.raises(lw.errors.NumericsError):
        lw.select("kcenter", 12, embedding=bad, folder=tmp_path / "j")
    assert not (tmp_path / "j").exists()


def _cut(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _without_sums(path):
    write_checked(path, {**json.loads(path.read_text()), "states": {}})


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("progress.json", lambda path: path.write_text("{}")),
        ("progress.json", lambda path: write_checked(path, {"answers": 1})),
        ("progress.json", lambda path: path.write_text("[1]")),
        ("progress.json", lambda path: path.write_text("{")),
        ("progress.json", lambda path: path.write_bytes(b"\xff\xfe")),
        ("about.json", _cut),
        ("answers.bin", _cut),
        ("answers.bin", _flip),
        ("answers.bin", lambda path: path.unlink()),
        ("state-*.bin", _cut),
        ("state-*.bin", _flip),
        ("state-*.bin", lambda path: path.write_bytes(bytes(4096) + path.read_bytes()[4096:])),
        ("progress.json", _without_sums),
        ("state-*.bin", lambda path: path.write_bytes(b"")),
        ("state-*.bin", lambda path: path.write_bytes(b"not a state")),
        ("state-*.bin", lambda path: path.unlink()),
    ],
)
def test_a_damaged_journal_is_named_with_what_to_do(name, harm, tmp_path, monkeypatch):
    _begun(tmp_path / "j", monkeypatch)
    (path,) = (tmp_path / "j").glob(name)
    harm(path)
    named = r"state-.*\.bin" if harm is _without_sums else path.name
    with pytest.raises(StoreError, match=rf"{named}.*remove .*j and start the selection again"):
        lw.select("kcenter", 12, embedding=H, folder=tmp_path / "j")


def test_every_bit_of_a_state_counts(tmp_path, monkeypatch):
    """torch reads a file whose numbers were changed without a word."""
    _begun(tmp_path / "j", monkeypatch)
    (path,) = (tmp_path / "j").glob("state-*.bin")
    data = path.read_bytes()
    for at in range(0, len(data), len(data) // 40):
        path.write_bytes(data[:at] + bytes([data[at] ^ 8]) + data[at + 1 :])
        with pytest.raises(StoreError, match="damaged"):
            lw.select("kcenter", 12, embedding=H, folder=tmp_path / "j")
    path.write_bytes(data)
    got = lw.select("kcenter", 12, embedding=H, folder=tmp_path / "j")
    assert got.ids.tolist() == lw.select("kcenter", 12, embedding=H).ids.tolist()


class Full:
    """A disk that takes no more from some moment on."""

    def __init__(self, monkeypatch, after):
        self.left, write, add = after, state.write_value, Answers._add

        def saving(target, write_bytes):
            self.left -= 1
            if self.left < 0:
                write_bytes(b"some of it")
                raise OSError(28, "No space left on device")
            write(target, write_bytes)

        def adding(answers, data):
            if self.left < 0:
                raise OSError(28, "No space left on device")
            add(answers, data)

        monkeypatch.setattr(state, "write_value", saving)
        monkeypatch.setattr(Answers, "_add", adding)


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_full_disk_costs_the_journal_and_not_the_picks(after, tmp_path, monkeypatch):
    expected = lw.select("kcenter", 12, embedding=H).ids.tolist()
    with monkeypatch.context() as patched:
        Full(patched, after)
        with pytest.warns(journal.JournalStopped, match=r"j: the journal .*cannot be written any more"):
            got = lw.select("kcenter", 12, embedding=H, folder=tmp_path / "j")
    assert got.ids.tolist() == expected
    assert not (tmp_path / "j").exists()


def test_what_was_kept_before_the_disk_was_full_is_gone_on_from(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        Full(patched, 5)
        with pytest.warns(journal.JournalStopped):
            killed_at(20, lambda: lw.select("kcenter", 12, embedding=H, folder=tmp_path / "j"))
    assert len(list((tmp_path / "j").glob("state-*.bin"))) == 1  # nothing of the one that did not fit
    noted = json.loads((tmp_path / "j" / "progress.json").read_text())
    assert noted["generation"] == 5
    got = lw.select("kcenter", 12, embedding=H, folder=tmp_path / "j")
    assert got.ids.tolist() == lw.select("kcenter", 12, embedding=H).ids.tolist()


def test_answers_that_cannot_be_closed_take_no_pick_away(tmp_path, monkeypatch):
    """A full disk shows when the last bytes are written."""

    def closing(self, close=Answers.close):
        close(self)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Answers, "close", closing)
    assert len(lw.select("kcenter", 12, embedding=H, folder=tmp_path / "j")) == 12
    assert not (tmp_path / "j").exists()


def test_a_file_called_lock_makes_no_folder_ours(tmp_path):
    for names in (("lock", "progress.json", "answers.bin"), ("lock", "thesis.txt")):
        folder = tmp_path / names[-1]
        folder.mkdir()
        for name in names:
            (folder / name).write_text("" if name == "lock" else "mine")
        with pytest.raises(StoreError, match="expected a new or an empty folder"):
            lw.select("kcenter", 12, embedding=H, folder=folder)
        assert [(folder / name).read_text() for name in names[1:]] == ["mine"] * (len(names) - 1)


@pytest.mark.slow
def test_a_folder_that_a_killed_selection_made_is_gone_after_it_was_done(tmp_path, monkeypatch):
    """Also where it was killed before a state was kept."""
    command = [sys.executable, "-c", textwrap.dedent(_KILLED), str(tmp_path / "j")]
    assert subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode == 7
    assert sorted(path.name for path in (tmp_path / "j").iterdir()) == ["answers.bin", "lock"]
    lw.select("kcenter", 12, embedding=H, folder=tmp_path / "j")
    assert not (tmp_path / "j").exists()


_KILLED = """
    import os, sys
    import numpy as np
    import labelwise as lw

    lw.select("kcenter", 12, embedding=np.eye(40), folder=sys.argv[1], progress=lambda done, total: os._exit(7))
"""


def test_another_seed_is_called_so(tmp_path, monkeypatch):
    _begun(tmp_path / "j", monkeypatch)
    with pytest.raises(StoreError, match=r"\(it differs in k, seed\)"):
        lw.select("kcenter", 13, embedding=H, folder=tmp_path / "j", seed=4)


def test_answers_that_do_not_fit_the_note_are_damage(tmp_path, monkeypatch):
    _begun(tmp_path / "j", monkeypatch)
    path = tmp_path / "j" / "progress.json"
    noted = json.loads(path.read_text())
    path.write_text(json.dumps({**noted, "answers": noted["answers"] + 1}))
    with pytest.raises(StoreError, match=r"progress\.json was changed after it was written"):
        lw.select("kcenter", 12, embedding=H, folder=tmp_path / "j")
    write_checked(path, {**noted, "answers": noted["answers"] + 1})
    with pytest.raises(StoreError, match=r"answers\.bin is damaged"):
        lw.select("kcenter", 12, embedding=H, folder=tmp_path / "j")


def test_rows_in_other_parts_are_called_so(tmp_path):
    pool = lambda count: shards_of(torch.arange(120), {Embedding(): torch.from_numpy(H)}, count)  # noqa: E731
    with contextlib.closing(FolderJournal(tmp_path / "j", {"k": 1}, pool(2), NONE)) as first:
        pool(2).with_journal(first).map(len)
    with pytest.raises(StoreError, match=r"parts of \[60, 60\], now .* parts of \[40, 40, 40\].*as many workers"):
        FolderJournal(tmp_path / "j", {"k": 1}, pool(3), NONE)
    with pytest.raises(StoreError, match=r"another selection \(it differs in k, rows\)"):
        FolderJournal(tmp_path / "j", {"k": 2}, pool(3), NONE)


def test_a_folder_is_the_same_wherever_a_worker_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert RunOptions.of(folder="here").folder == tmp_path / "here"


def test_a_key_is_part_of_what_is_selected(tmp_path, monkeypatch):
    _begun(tmp_path / "j", monkeypatch, seed=1)
    with pytest.raises(StoreError, match=r"another selection \(it differs in seed\)"):
        lw.select("kcenter", 12, embedding=H, folder=tmp_path / "j", seed=2)
    assert Key(1) != Key(2)
