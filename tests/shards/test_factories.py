"""What goes out to the workers of a session, and what a worker that is started again finds."""

import dataclasses
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
from test_every_strategy import _same
from torch import nn
from torch.utils.data import TensorDataset

import labelwise as lw
from labelwise.errors import NeedError, SourceError
from labelwise.pool import Pool
from labelwise.shards.factories import MADE, ReadPart
from labelwise.shards.placement import Placement, _files_of
from labelwise.shards.ray import spill
from labelwise.signals.read import Labelled
from labelwise.signals.spec import Features, Probs

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
NONE = Labelled(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))


def _numbers(n):
    return np.random.default_rng(0).normal(size=(n, 6)).astype("float32")


def _mapped(n, folder, kind="<f4"):
    np.save(folder / f"{n}.npy", _numbers(n).astype(kind))
    return np.load(folder / f"{n}.npy", mmap_mode="r")


def _table(n, folder, files=1, **more):
    """Parquet files of six numbers, a text, a label and an id; rows of an odd number of files, in small row groups."""
    paths = []
    for at, rows in enumerate(np.array_split(np.arange(n), files)):
        columns = {f"c{i}": _numbers(n)[rows, i] for i in range(6)}
        words = ["cat " * int(1 + row % 5) + f"number {row}" for row in rows]
        columns |= {"text": words, "y": rows % 2, "key": (n - rows) * 7}
        paths.append(folder / f"{n}-{files}-{at}.parquet")
        pq.write_table(pa.table(columns), paths[-1], row_group_size=64)
    return Pool.table(paths, **more)


def _free(pool):
    """All rows but some that are labelled, here and there."""
    return pool.ids[torch.arange(len(pool)) % 97 != 5][3:]


def _sent(pool, ids, *signals):
    return cloudpickle.dumps(ReadPart(None, pool, ids, signals or (Probs(),), 16, NONE, None))


@pytest.mark.parametrize("kind", ["mapped", "mapped features", "parquet"])
def test_what_lies_in_files_does_not_travel_however_many_rows_there_are(kind, tmp_path):
    sizes = []
    for n in (2_000, 20_000):
        if kind == "mapped":
            pool = Pool.of(_mapped(n, tmp_path))
        elif kind == "mapped features":
            pool = Pool.of(_mapped(n, tmp_path), features=_mapped(n, tmp_path))
        else:
            pool = _table(n, tmp_path, columns=[f"c{i}" for i in range(6)], label="y")
        ids = pool.ids[torch.arange(n) % (n // 20) != 5]  # as many holes in both
        sizes.append(len(_sent(pool, ids[: len(ids) // 2], Features())))
    assert max(sizes) < 6_000
    assert sizes[1] - sizes[0] < 100


def test_of_arrays_in_memory_a_part_takes_its_own_rows(tmp_path):
    x = _numbers(8_000)
    for source in (x, torch.from_numpy(x), TensorDataset(torch.from_numpy(x))):
        pool = Pool.of(source, labels=np.arange(8_000) % 2)
        sent = len(_sent(pool, pool.ids[2_000:4_000]))
        assert x.nbytes / 4 < sent < x.nbytes / 4 + 4_000
    texts = [f"a text of row {row}" for row in range(8_000)]
    assert len(_sent(Pool.of(texts), torch.arange(2_000, 4_000))) < len(pickle.dumps(texts)) / 3
    given = Pool.of(texts, features=x)
    assert len(_sent(given, torch.arange(10))) < 4_000  # nobody asked for features
    assert len(_sent(given, torch.arange(10), Features())) < 4_000


def _images(folder):
    from PIL import Image

    for row in range(40):
        colour = tuple(int(one) for one in np.random.default_rng(row).integers(0, 255, 3))
        Image.new("RGB", (4, 4), colour).save(folder / f"{row:03}.png")
    return Pool.images(folder, size=4)


_POOLS = {
    "array": lambda folder: Pool.of(_numbers(300)),
    "array with ids": lambda folder: Pool.of(_numbers(300), ids=np.random.default_rng(1).permutation(900)[:300] - 50),
    "tensor": lambda folder: Pool.of(torch.from_numpy(_numbers(300)).bfloat16()),
    "mapped": lambda folder: Pool.of(_mapped(300, folder), ids=np.arange(300)[::-1].copy()),
    "view of mapped": lambda folder: Pool.of(_mapped(300, folder)[7:290:3, 1:4]),
    "big-endian": lambda folder: Pool.of(_mapped(300, folder, ">f4")),
    "backwards": lambda folder: Pool.of(_mapped(300, folder)[::-1]),
    "subset": lambda folder: Pool.of(_mapped(300, folder), features=_mapped(200, folder)[:1].repeat(300, 0)).subset(
        np.random.default_rng(1).permutation(300)[:120]
    ),
    "features": lambda folder: Pool.of(_numbers(300), features=_mapped(300, folder)).subset(torch.arange(250).flip(0)),
    "texts": lambda folder: Pool.of([f"text {row}" for row in range(300)], features=_numbers(300)),
    "dataset": lambda folder: Pool.of(TensorDataset(torch.from_numpy(_numbers(300)), torch.arange(300))),
    "images": _images,
    "parquet": lambda folder: _table(300, folder, columns=["c0", "c3"], label="y"),
    "parquet files with ids": lambda folder: _table(300, folder, 3, columns=["c0", "c1"], id="key", label="y"),
    "parquet texts": lambda folder: _table(300, folder, 3, text="text", label="y"),
}


@pytest.mark.parametrize("kind", _POOLS)
def test_a_worker_reads_the_rows_that_it_was_sent(kind, tmp_path):
    pool = _POOLS[kind](tmp_path)
    ids = _free(pool)[10:]
    there = cloudpickle.loads(cloudpickle.dumps(pool.to_read(ids, features=True)))
    assert torch.equal(there.ids, ids)
    for some in (ids, ids[5:9], ids.flip(0)[3:8]):
        expected, got = pool.inputs(some), there.inputs(some)
        assert got == expected if isinstance(expected, list) else torch.equal(got, expected)
        if pool.features is not None or not isinstance(expected, list):
            assert torch.equal(there.raw(some), pool.raw(some))
    assert there.labels is None


def test_images_in_parquet_are_read_by_the_worker(tmp_path):
    _images(tmp_path)
    files = sorted(tmp_path.glob("*.png"))
    rows = [{"bytes": file.read_bytes(), "path": file.name if at % 2 else None} for at, file in enumerate(files)]
    pq.write_table(pa.table({"image": rows, "y": list(range(40))}), tmp_path / "t.parquet", row_group_size=7)
    pool = Pool.table(tmp_path / "t.parquet", image="image", label="y", size=4)
    sent = pickle.dumps(pool.to_read(torch.arange(9, 33), features=False))
    assert len(sent) < 2_000
    there = pickle.loads(sent)
    assert torch.equal(there.inputs([30, 12]), pool.inputs([30, 12]))
    assert [there.name(row) for row in (30, 31)] == [pool.name(row) for row in (30, 31)]


def test_rows_left_out_on_reading_do_not_shift_those_of_a_worker(tmp_path):
    values = _numbers(100)[:, 0].astype("float64")
    values[[3, 40, 41]] = np.nan
    pq.write_table(pa.table({"a": values}), tmp_path / "t.parquet", row_group_size=16)
    pool = Pool.table(tmp_path / "t.parquet", on_error="skip")
    there = pickle.loads(pickle.dumps(pool.to_read(pool.ids[20:60], features=False)))
    assert torch.equal(there.inputs(pool.ids[20:60]), pool.inputs(pool.ids[20:60]))


def test_a_table_that_has_changed_is_refused_by_the_worker(tmp_path):
    pool = _table(300, tmp_path, columns=["c0"])
    there = pickle.loads(pickle.dumps(pool.to_read(torch.arange(10, 50), features=False)))
    (path,) = tmp_path.glob("*.parquet")
    pq.write_table(pa.table({"c0": [1.0]}), path)
    with pytest.raises(SourceError, match=r"has changed since the pool was made .* 1 rows, and had 300"):
        there.inputs([12])
    path.unlink()
    with pytest.raises(SourceError, match="a worker cannot read the file"):
        there.inputs([12])


def test_a_mapped_pool_is_opened_again_and_one_edited_in_memory_is_not(tmp_path):
    file = _mapped(300, tmp_path)
    again = pickle.loads(pickle.dumps(Pool.of(file)))
    assert len(pickle.dumps(again)) < 3_000  # still by name
    edited = np.load(tmp_path / "300.npy", mmap_mode="c")
    edited[7] = 5
    part = pickle.loads(pickle.dumps(Pool.of(edited).to_read(torch.arange(20), features=False)))
    assert float(part.inputs([7])[0, 0]) == 5


def test_the_model_is_packed_once_for_all_parts():
    session = lw.Session(_numbers(100), lw.TorchLearner(lambda: nn.Linear(6, 2), epochs=1), "margin", classes=2)
    session.tell(np.arange(10), np.arange(10) % 2)
    whole = ReadPart(session.fit().reader, session.pool, torch.arange(10, 100), (Probs(),), 16, NONE, None)
    parts = [dataclasses.replace(whole, ids=whole.ids[cut]) for cut in (slice(0, 48), slice(48, 90))]
    one, two = (part.__getstate__()["reader"] for part in parts)
    assert one is two
    shards = [cloudpickle.loads(cloudpickle.dumps(part))() for part in parts]
    assert torch.equal(torch.cat([shard.columns[Probs()] for shard in shards]), whole().columns[Probs()])


def _reader_of_texts():
    class Counts(nn.Module):  # in a function: workers do not find the module of a test
        def __init__(self):
            nn.Module.__init__(self)
            self.last = nn.Linear(3, 2)

        def forward(self, texts):
            return self.last(torch.tensor([[len(text), text.count("cat"), text.count("1")] for text in texts]).float())

    return Counts()


def _net():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


_SIX = [f"c{i}" for i in range(6)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("recipe", "model", "made"),
    [
        ("badge", _net, lambda folder: _table(300, folder, 3, columns=_SIX, id="key", label="y")),
        ("margin", _reader_of_texts, lambda folder: _table(300, folder, 3, text="text", label="y")),
        ("dynamical", _net, lambda folder: Pool.of(_mapped(300, folder))),  # looks back at the labelled rows
    ],
)
def test_picks_of_a_session_are_those_of_one_process(recipe, model, made, cluster, tmp_path):
    pool, got = made(tmp_path), []
    for engine in (cluster, None):
        session = lw.Session(pool, lw.TorchLearner(model, epochs=2), recipe, classes=2, engine=engine, batch=32)
        told = pool.ids[torch.arange(300) % 9 == 0].numpy()
        session.tell(told, np.arange(len(told)) % 2)
        got.append(session.ask(9))
    _same(*got)


def _watched(log, third="read"):
    """A model that writes down every batch that a worker reads with it, and may be killed or fail at the third."""
    home = os.getpid()

    class Watched(nn.Module):
        def __init__(self):
            nn.Module.__init__(self)
            self.last = nn.Linear(6, 2)

        def forward(self, x):
            if os.getpid() != home:
                with open(log, "a") as file:
                    file.write(f"{os.getpid()} {len(x)}\n")
                if third != "read" and log.read_text().count("\n") == 3:
                    os.kill(os.getpid(), signal.SIGKILL if third == "killed" else 0)
                    raise ValueError("the third batch")
            return self.last(x)

    return Watched


def _asked(engine, model):
    session = lw.Session(_numbers(230), lw.TorchLearner(model, epochs=2), "badge", classes=2, engine=engine, batch=20)
    session.tell(np.arange(30), np.arange(30) % 2)
    return session.ask(9)


@pytest.fixture
def folders(monkeypatch):
    """The folders of parts that are there now, of selections made within."""
    from labelwise.shards.ray import engine as module

    tokens, put = [], module._store_factory
    monkeypatch.setattr(module, "_store_factory", lambda ray, maker: tokens.append(maker.token) or put(ray, maker))

    def found():
        assert tokens
        there = Path(tempfile.gettempdir()).glob("labelwise-part-*")
        return [one for one in there if any(token in one.name for token in tokens)]

    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_worker_made_anew_maps_what_the_model_said_and_does_not_read_again(cluster, folders, monkeypatch, tmp_path):
    import ray

    from labelwise.shards.ray import engine as module

    begun, seen, begin = [], [], module.RemoteShard.begin

    def losing(self, fn):
        begun.append(self)
        if len(begun) == 11:
            seen.extend(folders())
            ray.kill(self._actor)
        return begin(self, fn)

    monkeypatch.setattr(module.RemoteShard, "begin", losing)
    got = _asked(cluster, _watched(tmp_path / "log"))
    assert sum(shard._losses for shard in set(begun)) == 1
    assert len(seen) == 2
    rows = Counter()
    for line in (tmp_path / "log").read_text().splitlines():
        worker, batch = line.split()
        rows[worker] += int(batch)
    assert sorted(rows.values()) == [100, 100]  # of 200 free rows, each once
    assert not folders()
    _same(got, _asked(None, _watched(tmp_path / "none")))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_a_worker_was_lost_while_writing_is_read_again(cluster, folders, tmp_path):
    got = _asked(cluster, _watched(tmp_path / "log", "killed"))
    workers = {line.split()[0] for line in (tmp_path / "log").read_text().splitlines()}
    assert len(workers) == 3
    assert not folders()
    _same(got, _asked(None, _watched(tmp_path / "none")))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_files_of_parts_are_gone_after_an_error(cluster, folders, tmp_path):
    with pytest.raises(ValueError, match="the third batch"):
        _asked(cluster, _watched(tmp_path / "log", "failed"))
    assert not folders()


def _part(**more):
    session = lw.Session(_numbers(100), lw.TorchLearner(lambda: nn.Linear(6, 2), epochs=1), "margin", classes=2)
    session.tell(np.arange(10), np.arange(10) % 2)
    return ReadPart(session.fit().reader, session.pool, torch.arange(10, 90), (Probs(),), 16, NONE, None, **more)


def _on_cpu(first):
    return Placement(block=1 << 20, note="selected on cpu: no room on cuda:0")


def _there(token):
    return list(Path(tempfile.gettempdir()).glob(f"labelwise-part-{token}*"))


@pytest.fixture
def aside(tmp_path, monkeypatch):
    """Temporary files go to a folder of the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    spill.remove("")  # so that the processes that watch them end


def test_a_part_set_aside_is_taken_over_whole_or_not_at_all(aside):
    maker = _part(token="a", policy=_on_cpu)
    first = maker()
    (old,) = _there("a")
    lost = dataclasses.replace(maker, reader=None)  # it could not read: there is no model
    second = lost()
    assert torch.equal(second.columns[Probs()], first.columns[Probs()])
    assert (
        (second.block_bytes, second.placement_note)
        == (first.block_bytes, first.placement_note)
        == (1 << 20, _on_cpu(None).note)
    )
    (new,) = _there("a")
    assert new != old
    (new / MADE).unlink()  # as if the worker had been lost while it wrote
    with pytest.raises(NeedError):
        lost()
    spill.remove("a")
    assert not _there("a")


def test_parts_of_an_accelerator_and_those_the_disk_has_no_room_for_are_not_set_aside(aside, monkeypatch):
    disk = type("Disk", (), {"free": 80 * 2 * 4})
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: disk)
    assert _part(token="b")().columns[Probs()].shape == (80, 2)
    assert not _there("b")
    disk.free *= 2
    _part(token="b")()
    assert len(_there("b")) == 1
    rows = list(_part()._stream()())
    assert _files_of(Placement(torch.device("meta")), aside / "new", rows, 80) is None


_WORKER = """
import sys, tempfile
from labelwise.shards.ray import spill
tempfile.tempdir = sys.argv[1]
folder = spill.claim_folder(sys.argv[2], "made", float(sys.argv[3]))
folder.mkdir(exist_ok=True)
(folder / "made").touch()
print(folder, flush=True)
sys.stdin.read()
"""


def _worker(folder, name, wait):
    asked = [sys.executable, "-c", _WORKER, str(folder), name, str(wait)]
    process = subprocess.Popen(asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, Path(process.stdout.readline().strip())


@pytest.mark.slow
def test_what_nobody_takes_over_is_removed_when_the_worker_was_killed(tmp_path):
    first, old = _worker(tmp_path, "c", 0.0)
    other, recent = _worker(tmp_path, "d", 60.0)
    for process in (first, other):
        process.kill()
        process.communicate()
    until = time.monotonic() + 30
    while old.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not old.exists()
    assert recent.exists()  # its time has not come
    taken, new = _worker(tmp_path, "d", 60.0)
    assert not recent.exists()
    assert (new / "made").exists()
    taken.kill()
    taken.communicate()
