"""One suite for what runs shards: one process, functions that travel, a journal, Ray. All give the same picks."""

import contextlib
import dataclasses
import functools
import itertools
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import cloudpickle
import numpy as np
import pytest
import torch
from test_every_strategy import NAMES, _inputs, _labelled, _same, _shards
from torch import nn

import labelwise as lw
from labelwise.errors import ArgumentError, ClusterError, StoreError
from labelwise.pool.sources.arrays import file_of
from labelwise.rng import Key
from labelwise.selection import progress
from labelwise.selection.run import run_selection
from labelwise.selection.validate import as_tensor
from labelwise.shards import Shards
from labelwise.shards.checkpoint.journal import MARK, FolderJournal
from labelwise.shards.factories import ReadPart, array_parts, split_rows
from labelwise.shards.placement import Placement
from labelwise.shards.ray import Ray
from labelwise.signals.read import Labelled
from labelwise.signals.spec import Embedding, Probs
from tuned import AFTER_EVERY_ANSWER, tuned

NONE = Shards([])


class Travelling:
    """A shard to which functions and from which answers travel as bytes, as to another machine."""

    def __init__(self, shard, largest):
        self.shard, self.largest = shard, largest

    def __len__(self):
        return len(self.shard)

    def begin(self, fn):
        sent = cloudpickle.dumps(fn)
        back = cloudpickle.dumps(cloudpickle.loads(sent)(self.shard))
        self.largest.append(max(len(sent), len(back)))
        return functools.partial(pickle.loads, back)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_functions_that_travel_give_the_same_picks_and_carry_little(name):
    strategy, ids = lw.strategies.get(name), np.arange(2000) * 3
    inputs, largest = _inputs(2000, d=16), []
    here = _shards(name, inputs, ids, 3)
    there = Shards([Travelling(shard, largest) for shard in _shards(name, inputs, ids, 3)._shards])
    _same(strategy.select(here, NONE, 25, Key(1)), strategy.select(there, NONE, 25, Key(1)))
    assert max(largest) < 2000 * 16 * 8 / 2, "a function or an answer as large as half of the rows"


class Killed(BaseException):
    """Stands for kill -9: nothing after it runs."""


class Stopping:
    """A shard that stops everything at the n-th function."""

    def __init__(self, shard, count, at):
        self.shard, self.count, self.at = shard, count, at

    def __len__(self):
        return len(self.shard)

    def begin(self, fn):
        self.count[0] += 1
        if self.count[0] == self.at:
            raise Killed
        return functools.partial(fn, self.shard)


def _calls_in_snapshot(name, inputs, ids, at, folder, labelled=NONE):
    """A selection with a journal that keeps after every answer, stopped at the function `at`; and the functions run."""
    count = [0]
    pool = Shards([Stopping(shard, count, at) for shard in _shards(name, inputs, ids, 2)._shards])
    strategy = lw.strategies.get(name)
    about = {"strategy": repr(strategy), "k": 12, "key": repr(Key(2))}
    try:
        with contextlib.closing(FolderJournal(folder, about, pool, labelled)) as journal:
            picks = strategy.select(pool.with_journal(journal), labelled.with_journal(journal), 12, Key(2))
            journal.remove()
    except Killed:
        return None, count[0]
    return picks, count[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_selection_killed_again_and_again_goes_on_to_the_same_picks(name, tmp_path, monkeypatch):
    monkeypatch.setattr(FolderJournal, "tuning", AFTER_EVERY_ANSWER)
    inputs, ids = _inputs(120), np.arange(120) * 7 - 50
    expected = lw.strategies.get(name).select(_shards(name, inputs, ids, 2), NONE, 12, Key(2))
    _, whole = _calls_in_snapshot(name, inputs, ids, 0, tmp_path / "whole")
    assert not (tmp_path / "whole").exists()
    picks, tries, at = None, 0, 5
    while picks is None:
        picks, _ = _calls_in_snapshot(name, inputs, ids, at, tmp_path / "journal")
        tries, at = tries + 1, at + max(3, whole // 6)
        assert tries < 60
    _same(picks, expected)
    assert dict(picks.notes) == dict(expected.notes)
    assert not (tmp_path / "journal").exists()


@pytest.mark.slow
def test_what_was_answered_is_not_computed_again(tmp_path, monkeypatch):
    monkeypatch.setattr(FolderJournal, "tuning", AFTER_EVERY_ANSWER)
    inputs, ids = _inputs(120), np.arange(120)
    _, whole = _calls_in_snapshot("batchbald", inputs, ids, 0, tmp_path / "whole")
    _, ran = _calls_in_snapshot("batchbald", inputs, ids, whole - 8, tmp_path / "journal")
    assert ran >= whole - 8
    picks, again = _calls_in_snapshot("batchbald", inputs, ids, 0, tmp_path / "journal")
    assert picks is not None
    assert again <= 2 * (1 + 1) + 12, (again, whole)  # two shards: a digest and a state each, and what was left


def test_a_journal_of_another_selection_is_refused_and_a_strange_folder_too(tmp_path, monkeypatch):
    monkeypatch.setattr(FolderJournal, "tuning", AFTER_EVERY_ANSWER)
    inputs, ids = _inputs(120), np.arange(120)
    _calls_in_snapshot("kcenter", inputs, ids, 20, tmp_path / "j")
    with pytest.raises(StoreError, match="another selection \\(it differs in strategy, rows\\)"):
        _calls_in_snapshot("badge", inputs, ids, 0, tmp_path / "j")
    with pytest.raises(StoreError, match="another selection \\(it differs in rows\\)"):
        _calls_in_snapshot("kcenter", _inputs(120, seed=1), ids, 0, tmp_path / "j")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("text")
    with pytest.raises(StoreError, match="new or an empty folder"):
        _calls_in_snapshot("kcenter", inputs, ids, 0, tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "text"


def test_a_journal_killed_in_its_first_moment_is_begun_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(FolderJournal, "tuning", AFTER_EVERY_ANSWER)
    inputs, ids = _inputs(120), np.arange(120)
    (tmp_path / "j").mkdir()
    (tmp_path / "j" / "lock").write_bytes(MARK)
    (tmp_path / "j" / "answers.bin").write_bytes(b"some of an ans")
    (tmp_path / "j" / "about.tmp").write_text('{"vers')
    picks, _ = _calls_in_snapshot("kcenter", inputs, ids, 0, tmp_path / "j")
    _same(picks, lw.strategies.get("kcenter").select(_shards("kcenter", inputs, ids, 2), NONE, 12, Key(2)))


def test_an_answer_torn_by_a_kill_does_not_count(tmp_path, monkeypatch):
    monkeypatch.setattr(FolderJournal, "tuning", AFTER_EVERY_ANSWER)
    inputs, ids = _inputs(120), np.arange(120)
    _calls_in_snapshot("kcenter", inputs, ids, 20, tmp_path / "j")
    with open(tmp_path / "j" / "answers.bin", "ab") as file:
        file.write(b"half of an ans")
    picks, _ = _calls_in_snapshot("kcenter", inputs, ids, 0, tmp_path / "j")
    _same(picks, lw.strategies.get("kcenter").select(_shards("kcenter", inputs, ids, 2), NONE, 12, Key(2)))


def test_labelled_rows_have_their_state_kept_too(tmp_path):
    inputs, rows = _inputs(150), np.random.default_rng(3).normal(size=(9, 5))
    for name in ("kcenter", "typiclust", "probcover", "badge"):
        past = _labelled(name, rows)
        got = lw.select(name, 10, **inputs, labelled=past, folder=tmp_path / name)
        _same(got, lw.select(name, 10, **inputs, labelled=past))


_KILLED = """
    import sys, numpy as np, labelwise as lw
    from labelwise.shards.checkpoint import journal
    journal.FolderJournal.tuning = journal.Tuning(0.05, 1e9)
    rng = np.random.default_rng(0)
    print("started", flush=True)
    H = rng.normal(size=(20000, 64)).astype("float32")
    P = rng.dirichlet(np.ones(5), 20000).astype("float32")
    picks = lw.select("sabal-greedy", 250, probs=P, label_probs=P[:, ::-1].copy(), embedding=H, folder=sys.argv[1])
    print(",".join(map(str, picks.ids)), flush=True)
"""


def _start(folder):
    code = textwrap.dedent(_KILLED)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.slow
def test_killed_for_real_in_the_middle(tmp_path):
    whole = _start(tmp_path / "whole")
    expected = whole.communicate(timeout=120)[0].splitlines()[-1]
    assert expected.count(",") == 249
    process = _start(tmp_path / "j")
    deadline = time.monotonic() + 100
    while not (tmp_path / "j" / "progress.json").exists() and time.monotonic() < deadline:
        assert process.poll() is None, "done before it could be killed"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (tmp_path / "j" / "progress.json").exists()
    again = _start(tmp_path / "j")
    assert again.communicate(timeout=120)[0].splitlines()[-1] == expected


def test_parts_of_mapped_files_travel_by_name(tmp_path):
    values = np.random.default_rng(0).normal(size=(100, 3)).astype("float32")
    np.save(tmp_path / "h.npy", values)
    file = np.load(tmp_path / "h.npy", mmap_mode="r")
    assert _travels(values) is None
    columns = {Embedding(): torch.from_numpy(values), Probs(): torch.rand(100, 2)}
    makers = array_parts(torch.arange(100), columns, {Embedding(): _travels(file)}, torch.float32, 3)
    assert max(len(pickle.dumps(maker)) for maker in makers) < 3000
    shards = [pickle.loads(pickle.dumps(maker))() for maker in makers]
    assert torch.equal(torch.cat([shard.columns[Embedding()] for shard in shards]), torch.from_numpy(values))
    assert torch.equal(torch.cat([shard.columns[Probs()] for shard in shards]), columns[Probs()])


def _travels(array):
    return file_of(array, as_tensor("embedding", array, 2))


def test_views_of_mapped_files_travel_by_name_and_what_is_not_in_the_file_does_not(tmp_path):
    values = np.random.default_rng(0).normal(size=(100, 6))
    np.save(tmp_path / "h.npy", values)
    file = np.load(tmp_path / "h.npy", mmap_mode="r")
    for view in (file, file[10:], file[7:90:3], file[5:][:, 2:5], np.asarray(file)[3:], file[:, ::2], file.T[:, :4]):
        travels = _travels(view)
        assert np.array_equal(travels.open().numpy(), view)
        assert np.array_equal(travels.rows(slice(1, 3)).open().numpy(), view[1:3])
    assert _travels(file[::-1]) is None  # torch steps backwards only through a copy
    assert _travels(file.astype("float32")) is None
    for kind in (">f8", "longdouble", "uint64"):  # torch computes with a copy in another form
        np.save(tmp_path / "other.npy", values.astype(kind))
        assert _travels(np.load(tmp_path / "other.npy", mmap_mode="r")) is None
    edited = np.load(tmp_path / "h.npy", mmap_mode="c")
    edited[0] = 7  # in memory alone
    assert _travels(edited) is None


def test_parts_of_arrays_in_memory_are_views_until_they_travel_with_their_own_rows():
    whole = torch.rand(3000, 50)
    for values in (whole, whole.to(torch.bfloat16), whole.T.contiguous().T):
        makers = array_parts(torch.arange(3000), {Embedding(): values}, {}, torch.float32, 3)
        assert makers[1].columns[0][1].data_ptr() == values[1000:].data_ptr()
        sent = pickle.dumps(makers[1])
        assert len(sent) < 1000 * (50 * values.element_size() + 8) + 2000
        assert torch.equal(pickle.loads(sent)().columns[Embedding()], values[1000:2000])


def test_an_engine_that_is_not_known_is_refused():
    with pytest.raises(ArgumentError, match='None, "ray"'):
        lw.select("entropy", 1, probs=np.eye(3), engine="spark")
    with pytest.raises(ArgumentError, match="workers"):
        Ray(workers=0)
    for wrong in (-1, "x", float("nan"), float("inf"), True):
        with pytest.raises(ArgumentError, match="gpus"):
            Ray(gpus=wrong)
        with pytest.raises(ArgumentError, match="wait"):
            Ray(wait=wrong)


def test_nothing_is_written_for_a_short_selection(tmp_path):
    lw.select("entropy", 2, probs=np.full((5, 2), 0.5), folder=tmp_path / "j")
    assert not (tmp_path / "j").exists()
    pool = _shards("random", _inputs(10), np.arange(10), 1)
    assert len(run_selection(lw.strategies.get("random"), pool, NONE, 3, Key(0))) == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["badge", "batchbald"])
@pytest.mark.filterwarnings("ignore")
def test_ray_gives_the_picks_of_one_process(name, cluster):
    inputs, rows = _inputs(300), np.random.default_rng(3).normal(size=(9, 5))
    past = _labelled(name, rows)
    _same(lw.select(name, 10, **inputs, labelled=past, engine=cluster), lw.select(name, 10, **inputs, labelled=past))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_lost_worker_is_made_anew_and_the_selection_goes_on(cluster, monkeypatch):
    import ray

    from labelwise.shards.ray import engine as module

    inputs, begun = _inputs(300), []
    begin = module.RemoteShard.begin

    def losing(self, fn):
        begun.append(self)
        if len(begun) in (9, 30):
            ray.kill(self._actor)
        return begin(self, fn)

    monkeypatch.setattr(module.RemoteShard, "begin", losing)
    got = lw.select("sabal-greedy", 40, **inputs, engine=tuned(cluster, every=5))
    assert sum(shard._losses for shard in set(begun)) == 2
    _same(got, lw.select("sabal-greedy", 40, **inputs))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_error_in_a_worker_is_the_error_of_one_process(cluster):
    inputs = _inputs(300)
    inputs["embedding"][123, 2] = np.nan
    with pytest.raises(lw.errors.NumericsError, match="row id 123"):
        lw.select("kcenter", 5, embedding=inputs["embedding"], engine=cluster)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("asked", [{"workers": 3}, {"cpus": 3}, {"workers": 1, "gpus": 0.5}, {"workers": 2, "cpus": 2}])
def test_more_than_the_cluster_has_is_refused_at_once(asked, cluster):
    began = time.monotonic()
    with pytest.raises(ClusterError, match=r"were asked for .* the cluster has .* in all; ask for fewer workers="):
        lw.select("entropy", 3, probs=_inputs(30)["probs"], engine=Ray(**asked))
    assert time.monotonic() - began < 30


@pytest.mark.filterwarnings("ignore")
def test_without_a_number_of_workers_there_are_as_many_as_have_room(cluster):
    assert Ray().parts(100) == 2
    assert Ray(cpus=2).parts(100) == 1
    assert Ray().parts(1) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_cluster_that_others_use_is_waited_for_and_then_said_so(cluster):
    import ray

    other = ray.remote(num_cpus=1)(type("Other", (), {"here": lambda self: 1})).remote()
    ray.get(other.here.remote())
    with pytest.raises(ClusterError, match="2 workers of 1 CPUs found no place within 1 seconds: 1 CPUs are free of 2"):
        lw.select("entropy", 3, probs=_inputs(30)["probs"], engine=Ray(workers=2, wait=1))
    ray.kill(other)
    assert len(lw.select("entropy", 3, probs=_inputs(30)["probs"], engine=cluster)) == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_workers_are_gone_after_an_error_that_somebody_holds(cluster):
    inputs = _inputs(300)
    bad = inputs["embedding"].copy()
    bad[123, 2] = np.nan
    caught = []
    for _ in range(2):
        try:
            lw.select("kcenter", 5, embedding=bad, engine=cluster)
        except lw.errors.NumericsError as error:
            caught.append(error)
    got = lw.select("kcenter", 5, embedding=inputs["embedding"], engine=Ray(workers=2, wait=30))
    _same(got, lw.select("kcenter", 5, embedding=inputs["embedding"]))
    assert [type(error) for error in caught] == [lw.errors.NumericsError] * 2


def _refusing():
    home = os.getpid()

    class Refusing(nn.Module):  # in a function: workers do not find the module of a test
        def __init__(self):
            nn.Module.__init__(self)
            self.last = nn.Linear(6, 3)

        def forward(self, x):
            if os.getpid() != home:
                raise ValueError("this model does not read in a worker")
            return self.last(x)

    return Refusing()


class Rooted(nn.Module):
    """Holds what cannot be pickled."""

    def __init__(self):
        nn.Module.__init__(self)
        self.last, self.lock = nn.Linear(6, 3), threading.Lock()

    def forward(self, x):
        return self.last(x)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("model", "error", "text"),
    [
        (_refusing, ValueError, "does not read in a worker"),
        (Rooted, lw.errors.ModelError, "cannot be pickled .*lock.*engine=None"),
    ],
)
def test_what_goes_wrong_when_a_part_is_made_is_said(model, error, text, cluster):
    x = np.random.default_rng(0).normal(size=(60, 6)).astype("float32")
    session = lw.Session(x, lw.TorchLearner(model, epochs=1), "entropy", classes=3, engine=cluster)
    session.tell(np.arange(30), np.arange(30) % 3)
    with pytest.raises(error, match=text):
        session.ask(5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_on_ray_the_array_counts_and_not_the_file_it_came_from(cluster, tmp_path):
    values = _inputs(300)["embedding"]
    for kind in (">f8", "longdouble"):
        np.save(tmp_path / f"{kind[-1]}.npy", values.astype(kind))
        file = np.load(tmp_path / f"{kind[-1]}.npy", mmap_mode="r")
        _same(lw.select("kcenter", 9, embedding=file, engine=cluster), lw.select("kcenter", 9, embedding=file))
    np.save(tmp_path / "h.npy", values)
    edited = np.load(tmp_path / "h.npy", mmap_mode="c")
    edited[::2] *= 3
    _same(lw.select("kcenter", 9, embedding=edited, engine=cluster), lw.select("kcenter", 9, embedding=edited))
    part = np.load(tmp_path / "h.npy", mmap_mode="r")[40:]
    _same(lw.select("kcenter", 9, embedding=part, engine=cluster), lw.select("kcenter", 9, embedding=part))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_relative_folder_is_found_by_workers(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(FolderJournal, "tuning", AFTER_EVERY_ANSWER)
    values, states = _inputs(300)["embedding"], []
    keep = FolderJournal.checkpoint

    def keeping(self):
        keep(self)
        states.append(len(list((tmp_path / "here").glob("state-*.bin"))))

    monkeypatch.setattr(FolderJournal, "checkpoint", keeping)
    got = lw.select("kcenter", 9, embedding=values, engine=cluster, folder="here")
    assert set(states) == {2}
    _same(got, lw.select("kcenter", 9, embedding=values))


def _asked(engine, **more):
    """A batch of a session whose model is trained on answers that were not asked for, and the session."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 6)).astype("float32")
    model = lw.TorchLearner(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), epochs=4)
    session = lw.Session(x, model, "badge", classes=3, seed=0, engine=engine, **more)
    session.tell(np.arange(30), np.arange(30) % 3)
    return session.ask(12), session


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_session_on_ray_reads_with_a_model_in_each_worker_and_survives_a_loss(cluster, monkeypatch, tmp_path):
    import ray

    from labelwise.shards.ray import engine as module

    expected, _ = _asked(None, batch=37)
    begun, makers, begin, put = [], [], module.RemoteShard.begin, module._store_factory

    def losing(self, fn):
        begun.append(self)
        if len(begun) == 11:
            ray.kill(self._actor)
        return begin(self, fn)

    monkeypatch.setattr(module.RemoteShard, "begin", losing)
    monkeypatch.setattr(module, "_store_factory", lambda ray, maker: makers.append(maker) or put(ray, maker))
    got, _ = _asked(cluster, max_memory="200MB", spill=tmp_path, batch=37)
    assert sum(shard._losses for shard in set(begun)) == 1
    assert {len(maker.ids) for maker in makers} == {185}  # of 370 free rows, each worker read half
    assert all(maker.reader is not None for maker in makers)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pool-0", "pool-1"]
    _same(got, expected)


def _last_bits(engine, seed):
    """A batch of sabal-iht, whose picks follow the last bits of what the model says."""
    x = np.random.default_rng(0).normal(size=(149, 6)).astype("float32")
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
    session = lw.Session(x, lw.TorchLearner(net, epochs=3), "sabal-iht", classes=2, seed=seed, engine=engine, batch=30)
    session.tell(np.arange(38), np.arange(38) % 2)
    return session.ask(8)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [2, 4])
def test_parts_are_cut_between_forward_batches_so_that_the_last_bits_are_those_of_one_process(seed, cluster):
    _same(_last_bits(cluster, seed), _last_bits(None, seed))


@pytest.mark.parametrize(
    ("rows", "parts", "batch"), [(111, 2, 30), (1, 4, 256), (1000, 3, 7), (300, 64, 256), (8, 8, 1)]
)
def test_parts_have_whole_batches_and_all_rows(rows, parts, batch):
    cuts = split_rows(rows, parts, batch)
    assert [row for cut in cuts for row in range(cut.start, cut.stop)] == list(range(rows))
    assert all(cut.start % batch == 0 for cut in cuts)
    assert len(cuts) == min(parts, -(-rows // batch))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_rounds_on_ray_are_those_of_one_process(cluster):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(120, 4)).astype("float32")
    y = (x[:, 0] > 0).astype(int)
    model = lw.TorchLearner(lambda: nn.Linear(4, 2), epochs=3)
    there, here = (list(lw.rounds(x, y, model, "margin", 5, 1, engine=engine)) for engine in (cluster, None))
    assert [one.picked for one in there] == [one.picked for one in here]
    assert [one.metrics for one in there] == [one.metrics for one in here]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("parts", ["weigh density | certify basis", "weigh sabal | train primal-dual | certify basis"])
def test_weights_and_certificates_of_a_recipe_on_ray_are_those_of_one_process(parts, cluster):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(120, 4)).astype("float32")
    y = (x[:, 0] > 0).astype(int)
    model = lw.TorchLearner(lambda: nn.Linear(4, 2), epochs=3)
    there, here = (list(lw.rounds(x, y, model, f"badge | {parts}", 12, 2, engine=one)) for one in (cluster, None))
    assert [one.picked for one in there] == [one.picked for one in here]
    assert [one.metrics for one in there] == [one.metrics for one in here]
    for name in ("weights", "training"):
        assert [one.notes.get(name) for one in there] == [one.notes.get(name) for one in here]
    ratio = [[one.notes["selection"].get("approximation_ratio") for one in each] for each in (there, here)]
    assert ratio[0] == ratio[1]
    assert ratio[0][1] is not None
    assert any("weights" in one.notes for one in here) is ("density" in parts)


def _to_files(first):
    return Placement(files=True)


def test_a_part_is_read_where_it_lives(tmp_path):
    """What a worker does, in this process: read its rows with the model, into memory, files with or without a name."""
    _, session = _asked(None)
    reader, ids = session.fit().reader, torch.arange(50, 90)
    none = Labelled(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    makers = [
        ReadPart(reader, session.pool, ids, (Probs(), Embedding()), 16, none, folder, policy)
        for folder, policy in ((None, None), (tmp_path / "part", None), (None, _to_files))
    ]
    shards = [cloudpickle.loads(cloudpickle.dumps(maker))() for maker in makers]
    for shard in shards:
        assert torch.equal(shard.ids, ids)
        assert torch.equal(shard.columns[Probs()], shards[0].columns[Probs()])
    assert len(list((tmp_path / "part").glob("*.npy"))) == 2
    half = cloudpickle.loads(cloudpickle.dumps(dataclasses.replace(makers[0], half=True)))()
    assert torch.equal(half.columns[Probs()], shards[0].columns[Probs()].half())


def test_a_part_that_was_made_is_mapped_and_not_read_again(tmp_path):
    _, session = _asked(None)
    ids, none = torch.arange(50, 90), Labelled(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    folder = tmp_path / "part"
    maker = ReadPart(session.fit().reader, session.pool, ids, (Probs(), Embedding()), 16, none, folder, token="a")
    first = maker().columns
    lost = dataclasses.replace(maker, reader=None)  # it could not read: there is no model
    for asked, column in lost().columns.items():
        assert torch.equal(column, first[asked])
    with pytest.raises(lw.errors.NeedError):
        dataclasses.replace(lost, token="b")()  # the files of another reading do not count
    (folder / "made").unlink()
    with pytest.raises(lw.errors.NeedError):
        lost()


def test_progress_is_told_and_may_stop_a_selection():
    inputs, heard = _inputs(300), {}
    names = ("kcenter", "badge", "typiclust", "probcover", "bss", "leverage", "volume", "ally", "batchbald", "acs-fw")
    for name in (*names, "sabal-greedy", "sabal-iht"):
        told = heard[name] = []
        lw.select(name, 40, **inputs, progress=lambda done, total, told=told: told.append((done, total)))
    lw.select("bait", 10, **inputs, progress=lambda done, total: heard.setdefault("bait", []).append((done, total)))
    for name, told in heard.items():
        assert told, name
        assert [done for done, _ in told] == sorted(done for done, _ in told), name
        assert all(0 <= done <= total for done, total in told), name
    assert heard["kcenter"][-1] == heard["badge"][-1] == (39, 39)
    assert heard["sabal-greedy"][-1] == (40, 40)
    for name in ("typiclust", "probcover", "bss", "leverage", "volume", "ally", "bait"):
        assert heard[name][-1] == (progress.STEPS, progress.STEPS), name

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lw.select("sabal-greedy", 40, **inputs, progress=stop)
    with pytest.raises(ArgumentError, match="progress is a function"):
        lw.select("entropy", 2, **inputs, progress=7)
    before = len(heard["kcenter"])
    lw.select("kcenter", 40, **inputs)  # nobody listens any more
    assert len(heard["kcenter"]) == before


@pytest.mark.parametrize("name", ["ally", "leverage", "volume", "typiclust", "probcover", "bss"])
def test_a_method_of_several_stages_is_heard_of_in_each(name, monkeypatch):
    """Not only when its picks are made, which is the last of them."""
    monkeypatch.setattr(progress.time, "monotonic", itertools.count().__next__)  # a second passes each time
    shares = []
    lw.select(name, 40, **_inputs(1500), progress=lambda done, total: shares.append(done / total))
    assert shares == sorted(shares)
    assert shares[0] < 0.2
    assert shares[-1] == 1
    assert max(b - a for a, b in itertools.pairwise([0.0, *shares])) < 0.45


def test_stages_within_stages():
    heard = []
    with progress.progress_to(lambda done, total: heard.append((done, total))):
        with progress.stage(0.0, 0.5), progress.stage(0.5, 1.0):
            progress.tick(1, 2)
        progress.tick(7, 7)
    assert heard[0] == (375, progress.STEPS)
    assert heard[-1] == (7, 7)
    with progress.stage(0.0, 0.5):  # nobody listens
        progress.tick(1, 2)


def test_progress_of_a_session():
    heard = []
    x = np.random.default_rng(0).normal(size=(300, 4)).astype("float32")
    session = lw.Session(x, recipe="typiclust", classes=2)
    picks = session.ask(20, progress=lambda done, total: heard.append((done, total)))
    assert heard[-1] == (progress.STEPS, progress.STEPS)
    _same(picks, session.ask(20))
    with pytest.raises(ArgumentError, match="progress is a function"):
        session.ask(20, progress=7)


def test_what_a_listener_hears_is_spaced_and_ends_with_the_last(monkeypatch):
    heard, now = [], [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.progress_to(lambda done, total: heard.append(done)):
        for done in range(1, 101):
            now[0] += 0.01
            progress.tick(done, 100)
    progress.tick(5, 5)
    assert heard[0] == 1
    assert heard[-1] == 100
    assert 18 <= len(heard) <= 22
