"""Workers that are lost, once and again, and errors of workers: the picks of one process, or the reason in words."""

import contextlib
import functools
import os
import sys
import threading

import numpy as np
import pytest
import torch
from test_every_strategy import _inputs, _same

import labelwise as lw
from labelwise.errors import ArgumentError, ModelError, StoreError, WorkerError
from labelwise.shards import Shard
from labelwise.shards.checkpoint import journal
from labelwise.shards.checkpoint import state as state_file
from labelwise.shards.checkpoint.state import restore, save
from labelwise.shards.ray import cluster as cluster_module
from labelwise.shards.ray import engine as module
from labelwise.shards.ray.engine import Outbox, Ray, RemoteShard
from labelwise.shards.ray.serialize import RemoteError, deserialize, serialize
from labelwise.shards.shard import Once
from labelwise.signals.spec import Embedding
from tuned import AFTER_EVERY_ANSWER, tuned

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def before(monkeypatch):
    """Calls a function with the shard and how many were begun, before each function is; and gives all shards."""

    def set_up(act):
        begun, begin = [], RemoteShard.begin

        def acting(self, fn):
            begun.append(self)
            act(self, len(begun))
            return begin(self, fn)

        monkeypatch.setattr(RemoteShard, "begin", acting)
        return begun

    begin = RemoteShard.begin
    yield set_up
    monkeypatch.setattr(RemoteShard, "begin", begin)


def _kill_at(*moments):
    def act(shard, count):
        if count in moments:
            ray.kill(shard._actor)

    return act


def _losses(begun):
    return sum(shard._losses for shard in set(begun))


@pytest.mark.slow
@pytest.mark.parametrize(("keep", "local"), [(64, 16 << 20), (5, 0)])
def test_a_worker_is_lost_after_a_selection_went_on_from_its_journal(
    keep, local, cluster, before, monkeypatch, tmp_path
):
    monkeypatch.setattr(journal.FolderJournal, "tuning", AFTER_EVERY_ANSWER)
    engine = tuned(cluster, every=keep, local=local)
    select = functools.partial(lw.select, "sabal-greedy", 6, **_inputs(150))

    def stop(shard, count):
        if count == 41:
            raise KeyboardInterrupt

    before(stop)
    with pytest.raises(KeyboardInterrupt):
        select(engine=engine, folder=tmp_path / "j")
    assert list((tmp_path / "j").glob("state-*"))
    begun = before(_kill_at(25))
    got = select(engine=engine, folder=tmp_path / "j")
    assert _losses(begun) == 1
    _same(got, select())
    assert not (tmp_path / "j").exists()


def _shard(state):
    shard = Shard(torch.arange(4), {Embedding(): torch.zeros(4, 2)})
    shard.state["far"] = torch.full((4,), float(state))
    return shard


def test_a_state_that_cannot_be_written_leaves_the_one_that_is_there(tmp_path, monkeypatch):
    name, found = save(tmp_path, 3, _shard(1))

    def torn(values, write):
        write(b"half of a sta")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(state_file, "write_value", torn)
        with pytest.raises(StoreError, match=r"state-3-0\.bin cannot be written .*No space left"):
            save(tmp_path, 3, _shard(2))
    assert [path.name for path in tmp_path.iterdir()] == ["state-3-0.bin"]
    again = _shard(0)
    restore(tmp_path, 3, {name: found}, again)
    assert again.state["far"].tolist() == [1.0] * 4


def _kinds():
    """Errors that say that a process, a machine or a value is lost."""
    errors, gone = ray.exceptions, ray.exceptions.ObjectLostError("00" * 28, None, "")
    alone = [errors.OutOfMemoryError("killed"), errors.NodeDiedError("gone"), errors.LocalRayletDiedError()]
    alone += [errors.WorkerCrashedError(), errors.ActorDiedError(), errors.ActorUnavailableError("away", None), gone]
    alone += [errors.OwnerDiedError("00" * 28, None, ""), errors.ObjectReconstructionFailedError("00" * 28, None, "")]
    return [*alone, _in_task(gone), _in_task(_in_task(gone))]


def _in_task(cause):
    return ray.exceptions.RayTaskError("run", "", cause)


@pytest.mark.parametrize("error", _kinds(), ids=lambda error: type(error).__name__)
def test_what_ray_says_of_a_loss_is_one(error):
    assert isinstance(module._loss_of(ray, error), ray.exceptions.RayError)


def test_what_is_no_loss_is_raised():
    for error in (ray.exceptions.RaySystemError("x"), ray.exceptions.GetTimeoutError(), _in_task(ValueError("x"))):
        assert module._loss_of(ray, error) is None


@pytest.mark.slow
def test_a_worker_that_was_killed_for_its_memory_is_made_anew(cluster, before, monkeypatch):
    get, errors = ray.get, [ray.exceptions.OutOfMemoryError("the memory monitor killed it")]
    begun = before(lambda shard, count: None)

    def killing(waiting):
        if len(begun) == 6 and errors:
            raise errors.pop()
        return get(waiting)

    monkeypatch.setattr(ray, "get", killing)
    inputs = _inputs(200)
    got = lw.select("kcenter", 12, embedding=inputs["embedding"], engine=Ray(workers=1))
    assert _losses(begun) == 1
    _same(got, lw.select("kcenter", 12, embedding=inputs["embedding"]))


@pytest.mark.slow
def test_a_second_loss_on_the_way_back_is_another_loss(cluster, before, monkeypatch):
    at, killed = RemoteShard._restores, []

    def losing(self, state):
        if not killed:
            killed.append(state)
            ray.kill(self._actor)
        return at(self, state)

    monkeypatch.setattr(RemoteShard, "_restores", losing)
    begun, inputs = before(_kill_at(16)), _inputs(300)
    got = lw.select("sabal-greedy", 12, **inputs, engine=tuned(Ray(workers=1), every=5))
    assert killed
    assert _losses(begun) == 2
    _same(got, lw.select("sabal-greedy", 12, **inputs))


@pytest.mark.slow
def test_a_state_that_is_lost_too_is_made_again_from_the_beginning(cluster, before, monkeypatch):
    """In one process for the machines; tests/shards/ray/test_ray_machines.py loses one for real."""
    calls = []

    def lost(self, state):
        calls.append(self._calls_in_snapshot)
        self._loss = ray.exceptions.ObjectLostError("00" * 28, None, "")
        return False

    monkeypatch.setattr(RemoteShard, "_restores", lost)
    begun, inputs = before(_kill_at(16)), _inputs(300)
    got = lw.select("sabal-greedy", 12, **inputs, engine=tuned(Ray(workers=1), every=5, local=0))
    assert calls == [15]
    assert _losses(begun) == 1
    _same(got, lw.select("sabal-greedy", 12, **inputs))


@pytest.mark.slow
def test_a_state_held_here_lets_older_functions_go(cluster, before):
    longest = {}

    def look(shard, count):
        longest[local] = max(longest.get(local, 0), len(shard._calls))

    before(look)
    for local in (0, 1 << 20):
        lw.select("sabal-greedy", 8, **_inputs(200), engine=tuned(Ray(workers=1), every=5, local=local))
    assert longest[1 << 20] < 5 < longest[0]


@pytest.mark.slow
def test_a_part_that_is_lost_too_often_is_said_at_once_whoever_asks_again(cluster):
    with Ray(workers=1, losses=0).shards([_sent_along(_shard)], [4]) as shards:
        ray.kill(shards._shards[0]._actor)
        with contextlib.suppress(StoreError):
            for _ in range(1000):  # the worker may answer a little longer
                shards.map(len)
        with pytest.raises(StoreError, match="4 rows was lost 1 times"):
            shards.map(len)


def _noted(file, shard):
    with open(file, "a") as lines:
        lines.write("run\n")


@pytest.mark.slow
def test_what_is_to_run_once_is_not_run_again_after_a_loss(cluster, tmp_path):
    file = tmp_path / "runs"
    with Ray(workers=1).shards([_sent_along(_shard)], [4]) as shards:
        shards.map(Once(functools.partial(_noted, file)))
        ray.kill(shards._shards[0]._actor)
        assert shards.map(len) == [4]
    assert file.read_text().count("run") == 1


def _needs(file, shard):
    shard.state["far"] += float(file.read_text())


@pytest.mark.slow
def test_a_part_that_cannot_be_brought_back_answers_nothing_more(cluster, tmp_path):
    file = tmp_path / "number"
    file.write_text("3")
    with Ray(workers=1).shards([_sent_along(_shard)], [4]) as shards:
        shards.map(functools.partial(_needs, file))
        file.unlink()
        ray.kill(shards._shards[0]._actor)
        for _ in range(2):
            with pytest.raises(FileNotFoundError, match="number"):
                shards.map(len)


class TwoArguments(Exception):
    def __init__(self, a, b):
        Exception.__init__(self, f"{a} and {b}")


class Locked(Exception):
    def __init__(self, text):
        Exception.__init__(self, text)
        self.lock = threading.Lock()


def _fails(error, shard):
    raise error()


def _sent_along(maker):
    """A maker whose module travels with it, since workers do not find that of a test."""
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return functools.partial(maker, 1)


@pytest.mark.slow
def test_errors_of_a_worker_come_with_where_they_were_raised(cluster):
    limit = lw.errors.MemoryLimitError
    with Ray(workers=1).shards([_sent_along(_shard)], [4]) as shards:
        for kind, values, error, text in (
            (ValueError, ["plain"], ValueError, "^plain$"),
            (limit, ["short", 7], limit, "^short$"),
            (TwoArguments, ["one", "two"], WorkerError, "TwoArguments: one and two"),
            (Locked, ["holding"], WorkerError, "Locked: holding"),
        ):
            with pytest.raises(error, match=text) as caught:
                shards.map(functools.partial(_fails, functools.partial(kind, *values)))
            assert "in _fails" in str(caught.value.__cause__)
        assert shards.map(len) == [4]  # the worker is as it was


def _only_at(home):
    if os.getpid() != home:
        raise RuntimeError("cannot be made again here")


class Homebound:
    def __call__(self):
        return _shard(1)

    def __reduce__(self):
        return _only_at, (os.getpid(),)


@pytest.mark.slow
def test_what_cannot_be_unpickled_in_a_worker_is_said(cluster):
    _sent_along(_shard)
    with (
        pytest.raises(ModelError, match=r"unpickled \(RuntimeError: cannot be made again here\).*engine=None"),
        Ray(workers=1).shards([Homebound()], [4]),
    ):
        pass


def test_an_error_whose_class_is_not_known_here_is_said():
    unknown = RemoteError("far.Away: lost", "trace", [np.frombuffer(b"cfar\nAway\n.", np.uint8)]).error()
    assert type(unknown) is WorkerError
    assert "far.Away: lost" in str(unknown)


def test_arrays_travel_apart_from_what_holds_them():
    values = {"a": np.arange(5000.0), "none": np.empty((0, 3)), "t": torch.arange(3)}
    sent = serialize(values)
    assert sent[1].ctypes.data == values["a"].ctypes.data
    back = deserialize(sent)
    assert np.array_equal(back["a"], values["a"])
    assert back["none"].shape == (0, 3)
    assert torch.equal(back["t"], values["t"])


class _Store:
    """Ray as far as it stores things."""

    def __init__(self):
        self.stored = []

    def put(self, value):
        self.stored.append(value)
        return len(self.stored)


def test_a_function_is_stored_once_for_all_parts_and_again_when_it_is_asked_again():
    store = _Store()
    outbox, arguments = Outbox(store), [1]
    fn = functools.partial(len, arguments)
    assert [outbox.put(fn, number) for number in range(3)] == [1, 1, 1]
    arguments.append(2)
    assert [outbox.put(fn, number) for number in range(3)] == [2, 2, 2]
    assert deserialize(store.stored[1]).args == ([1, 2],)


def test_another_cluster_than_the_connected_one_is_refused(cluster):
    here = ray.get_runtime_context().gcs_address
    for address in (None, "auto", "local", here):
        assert Ray(address=address).parts(100) == 2
    for address in ("192.0.2.77:6379", f"{here}1", "ray://192.0.2.77:10001"):
        with pytest.raises(ArgumentError, match=f"connected to another cluster already, {here}; leave address= out"):
            Ray(address=address).parts(100)


@pytest.mark.parametrize(("environment", "expected"), [("", "local"), ("192.0.2.77:6379", None)])
def test_without_an_address_no_cluster_is_joined_that_nobody_named(environment, expected, monkeypatch):
    asked = []
    monkeypatch.setenv("RAY_ADDRESS", environment)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **settings: asked.append(settings["address"]))
    cluster_module.connect(None)
    cluster_module.connect("auto")
    assert asked == [expected, "auto"]


def test_places_are_counted_on_each_machine(monkeypatch):
    def nodes(*has):
        return lambda: [{"Alive": True, "Resources": one} for one in has] + [{"Alive": False, "Resources": has[0]}]

    six = {"CPU": 6.0}
    for machines, worker, expected in (
        ((six, six), {"CPU": 4}, 2),
        ((six, {}), {"CPU": 1}, 6),
        (({"CPU": 8.0, "GPU": 2.0}, six), {"CPU": 1, "GPU": 0.6}, 2),
        (({"CPU": 16.0, "GPU": 1.0},), {"CPU": 1, "GPU": 0.1}, 10),
    ):
        monkeypatch.setattr(ray, "nodes", nodes(*machines))
        assert cluster_module.capacity(ray, worker) == expected


@pytest.mark.slow
def test_where_there_is_room_nobody_has_to_wait(cluster):
    assert len(lw.select("entropy", 3, probs=_inputs(30)["probs"], engine=Ray(workers=1, wait=0))) == 3
