"""Damaged files and odd arguments for everything that reads: each must be read, or refused with a sentence.

    python benchmarks/fuzz.py                         # writes its part of docs/results/reliability.md
    python benchmarks/fuzz.py --inputs 300 --only tables,suites --dry
    python benchmarks/fuzz.py --only tables --seed 7 --keep finds      # what raised a raw exception, as files

A good input of each kind is mutated: bytes are flipped, cut, doubled and spliced, numbers become extreme, values of
JSON and YAML become others. In half of the inputs the checksum of a file that has one is made to fit again, so that the
reader behind it is tried too. Functions get odd values for some arguments. Inputs follow from the seed, the reader and
a number. An input is *read*, *refused* (by a `LabelwiseError`) or *raw*: any other exception, at the last line of ours
on its way. More than `CPU_SECONDS` of processor time for one input is raw as well.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import json
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import labelwise
from labelwise.errors import LabelwiseError
from labelwise.io.checked import CHECKSUM, with_checksum
from reliability_page import write_part

SOURCE = Path(labelwise.__file__).resolve().parent
CPU_SECONDS = 20.0
SEAL = b"labelwise sha256 "
MUTATIONS = 3  # of one input, at most

ODD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 0.5, -0.0, 1e300, -1e300, 1e-300, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 2**64,
    10**400,
    float("nan"), float("inf"), float("-inf"), "", " ", "x", "nan", "NaN", "1e999", "-1", "\0", "ü", "猫" * 40,
    "x" * 5000,
    "../../etc/passwd", "=1+1", "a\nb", [], {}, [[]], {"x": 1}, [None], "true", b"", [1, 2, 3], {"": ""},
]  # fmt: skip
TEXTS = [
    b"1e999", b"-1", b"0", b"9223372036854775808", b"NaN", b"-Infinity", b"null", b"true", b"[]", b"{}", b'""', b",",
    b"\n", b"\r",
    b"\x00", b'"', b"'", b"\xff\xfe", b"\xef\xbb\xbf", b"\t", b": ", b"- ", b"!!python/name:os.system", b"&a [*a]",
    b"*a", b"%",
    b"9" * 5000, b"[" * 3000, b'{"a":' * 3000, b"\xed\xa0\x80", b"1" + b"0" * 400, b"2024-02-31", b"0x10", b"1_000",
    b"!!binary x",
    b"? ", b"<<: ", b"..", b"\\u0000", b"\\ud800",
]  # fmt: skip


class TooLongError(BaseException):
    """An input took more processor time than it may."""


@dataclass
class Target:
    """Something that reads: a folder of good files, those to mutate, and what reads them."""

    name: str
    use: Callable[[Path], None]
    files: list[str] = field(default_factory=list)


@dataclass
class Outcome:
    """What came of the inputs of one target."""

    inputs: int = 0
    read: int = 0
    refused: int = 0
    raw: Counter[str] = field(default_factory=Counter)  # by place and type
    examples: dict[str, str] = field(default_factory=dict)  # by place and type: the input and the message


# --- mutations -------------------------------------------------------------------------------------------------------


def mutated(data: bytes, chance: random.Random, name: str) -> bytes:
    """`data`, changed in one to `MUTATIONS` ways."""
    for _ in range(chance.randint(1, MUTATIONS)):
        data = _structural(data, chance, name) if chance.random() < 0.5 else _bytes(data, chance)
    return data


def _bytes(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    to = min(len(data), at + chance.choice((1, 2, 4, 8, 64, 1024)))
    kind = chance.randrange(9)
    if kind == 0 and data:
        bit = chance.randrange(8 * len(data))
        return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]
    if kind == 1:
        return data[:at] + data[to:]
    if kind == 2:
        return data[:to] + data[at:]
    if kind == 3:
        return data[:at]
    if kind == 4:
        return data[:at] + chance.randbytes(to - at) + data[to:]
    if kind == 5:
        return data[:at] + bytes([chance.choice((0, 1, 127, 128, 255))]) * (to - at) + data[to:]
    if kind == 6:
        return data[:at] + chance.choice(TEXTS) + data[to if chance.random() < 0.5 else at :]
    if kind == 7:
        found = list(re.finditer(rb"\d+(\.\d+)?", data[:100_000]))
        if found:
            one = chance.choice(found)
            return data[: one.start()] + chance.choice(TEXTS[:6]) + data[one.end() :]
        return data
    lines = data.split(b"\n")
    here, there = chance.randrange(len(lines)), chance.randrange(len(lines))
    lines[here], lines[there] = lines[there], lines[here]
    return b"\n".join(lines)


def _structural(data: bytes, chance: random.Random, name: str) -> bytes:
    """A value of JSON or YAML replaced by an odd one, left out or given twice; other files by bytes."""
    try:
        if name.endswith(".json"):
            return _json(_changed(json.loads(data), chance))
        if name.endswith(".jsonl"):
            lines = data.splitlines()
            at = chance.randrange(len(lines))
            lines[at] = _json(_changed(json.loads(lines[at]), chance))
            return b"\n".join(lines) + b"\n"
        if name.endswith((".yaml", ".yml")):
            import yaml

            return bytes(yaml.safe_dump(_changed(yaml.safe_load(data), chance), sort_keys=False), "utf-8", "replace")
    except (ValueError, RecursionError, IndexError, TypeError, KeyError):
        pass
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "yaml":
            raise
    return _bytes(data, chance)


def _json(value: Any) -> bytes:
    return json.dumps(value, default=lambda one: one.decode("latin-1")).encode()


def _changed(tree: Any, chance: random.Random) -> Any:
    """`tree` with one node changed."""
    places: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
            places.append((node, key))
            if isinstance(value, dict | list):
                visit(value)

    if not isinstance(tree, dict | list):
        return chance.choice(ODD)
    visit(tree)
    if not places or chance.random() < 0.03:
        return chance.choice(ODD)
    node, key = chance.choice(places)
    kind = chance.randrange(5)
    if kind == 0:
        del node[key]
    elif kind == 1 and isinstance(node, list):
        node.insert(key, node[key])
    elif kind == 1:
        node[f"{key}{chance.choice(('', 'x', '_'))}"] = chance.choice(ODD)
    elif kind == 2:
        other, place = chance.choice(places)
        with contextlib.suppress(KeyError, IndexError):
            node[key] = json.loads(json.dumps(other[place], default=str))
    else:
        node[key] = chance.choice(ODD)
    return tree


def resealed(data: bytes) -> bytes:
    """`data` with a checksum that fits, if it has one."""
    if data.startswith(SEAL):
        rest = data[len(SEAL) + 65 :]
        return SEAL + hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest
    try:
        found = json.loads(data)
        return json.dumps(with_checksum(found)).encode() if isinstance(found, dict) and CHECKSUM in found else data
    except (ValueError, RecursionError):
        return data


# --- running ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def limited(seconds: float = CPU_SECONDS) -> Iterator[None]:
    """Raise after so much processor time."""

    def late(*_: Any) -> None:
        raise TooLongError(f"more than {seconds:.0f} s")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def tried(call: Callable[[], Any]) -> tuple[str, str]:
    """What comes of a call: "read", "refused" or the place and type of a raw exception; and the message."""
    try:
        with limited(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
        return "read", ""
    except LabelwiseError as error:
        return ("refused", str(error)) if str(error).strip() else (f"{place_of(error)}: empty message", "")
    except (Exception, TooLongError) as error:
        return f"{place_of(error)}: {type(error).__name__}", str(error)[:300]


def place_of(error: BaseException) -> str:
    """The last line of ours on the way of an exception."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(SOURCE)
    ]
    if not frames:
        return "outside"
    return f"{Path(frames[-1].filename).relative_to(SOURCE)}:{frames[-1].lineno} {frames[-1].name}"


def inputs_of(
    target: Target, good: Path, seed: int, start: int, count: int
) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """The name of each input, and what writes it into a copy of the good folder."""
    for number in range(start, start + count):
        chance = random.Random(f"{seed} {target.name} {number}")
        file = chance.choice(target.files)
        sealed = chance.random() < 0.5

        def write(folder: Path, file: str = file, chance: random.Random = chance, sealed: bool = sealed) -> None:
            data = mutated((good / file).read_bytes(), chance, file)
            (folder / file).write_bytes(resealed(data) if sealed else data)

        yield f"{number} {file}", write


def fuzz(target: Target, good: Path, seed: int, count: int, start: int = 0, keep: Path | None = None) -> Outcome:
    """Try `count` inputs of a target."""
    found = Outcome()
    with tempfile.TemporaryDirectory() as base:
        shutil.copytree(good, Path(base) / "good")
        result, message = tried(lambda: target.use(Path(base) / "good"))
        if result != "read":
            raise SystemExit(f"{target.name}: the good files themselves are not read: {result}: {message}")
        for name, write in inputs_of(target, good, seed, start, count):
            folder = Path(base) / "copy"
            shutil.copytree(good, folder)
            write(folder)
            result, message = tried(functools.partial(target.use, folder))
            _note(found, result, f"{target.name} {seed} {name}: {message}")
            if keep is not None and result not in ("read", "refused") and found.raw[result] == 1:
                shutil.copytree(
                    folder, keep / f"{target.name}-{name.replace('/', '_').replace(' ', '-')}", dirs_exist_ok=True
                )
            shutil.rmtree(folder, ignore_errors=True)
    return found


def fuzz_calls(
    name: str, make: Callable[[random.Random], Callable[[], Any]], seed: int, count: int, start: int = 0
) -> Outcome:
    """Try `count` calls that `make` builds."""
    found = Outcome()
    for number in range(start, start + count):
        call = make(random.Random(f"{seed} {name} {number}"))
        result, message = tried(call)
        _note(found, result, f"{name} {seed} {number} {getattr(call, 'says', '')}: {message}")
    return found


def _note(found: Outcome, result: str, example: str) -> None:
    found.inputs += 1
    if result in ("read", "refused"):
        setattr(found, result, getattr(found, result) + 1)
    else:
        found.raw[result] += 1
        found.examples.setdefault(result, example)


# --- what reads files ------------------------------------------------------------------------------------------------

RNG = np.random.Generator(np.random.PCG64(0))
X_ND = RNG.normal(size=(24, 3)).round(3)
P_NC = RNG.dirichlet((1.0, 1.0, 1.0), 24)
TABLE = ["id,text,size,city,label"] + [
    f'{n},"the {n}th, text",{x:.2f},{("Ulm", "Bern")[n % 2]},{"ab"[n % 2]}' for n, x in enumerate(X_ND[:, 0])
]


def _write_tables(folder: Path, name: str = "t") -> list[str]:
    """The same table in every form."""
    import gzip

    import pyarrow as pa
    import pyarrow.parquet as pq

    text = "\n".join(TABLE) + "\n"
    (folder / f"{name}.csv").write_text(text)
    tabs = text.replace(", text", " text").replace('"', "").replace(",", "\t")
    (folder / f"{name}.tsv").write_text(tabs)
    (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    columns = {
        "id": list(range(24)),
        "text": [f"text {n}" for n in range(24)],
        "size": X_ND[:, 0],
        "city": pa.array([("Ulm", "Bern")[n % 2] for n in range(24)]).dictionary_encode(),
        "label": ["ab"[n % 2] for n in range(24)],
        "vector": [row.tolist() for row in X_ND],
    }
    pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return [f"{name}.{ending}" for ending in ("csv", "tsv", "csv.gz", "parquet")]


def _present(folder: Path, names: list[str], good: Path) -> str:
    """The file that differs from the good one; the first if none does."""
    return next((name for name in names if (folder / name).read_bytes() != (good / name).read_bytes()), names[0])


def arrays(good: Path) -> Target:
    """`labelwise select` with a file of arrays."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from labelwise.cli.files import read_array

    np.save(good / "p.npy", P_NC)
    np.save(good / "q.npy", P_NC.astype(np.float16))
    np.savez(good / "p.npz", probs=P_NC, ids=np.arange(24))
    np.savez_compressed(good / "q.npz", probs=P_NC)
    pq.write_table(pa.table({"probs": P_NC.tolist()}), good / "p.parquet")
    pq.write_table(pa.table({f"c{n}": P_NC[:, n] for n in range(3)}), good / "q.parquet")
    names = sorted(path.name for path in good.iterdir())

    def use(folder: Path) -> None:
        array = read_array("probs", str(folder / _present(folder, names, good)))
        labelwise.select("margin", 2, probs=array)
        array.tolist()

    return Target("arrays", use, names)


def tables(good: Path) -> Target:
    """Tables: as a pool, as features of `label` and `simulate`, and as embeddings."""
    from labelwise.bench.data.own_table import read_own
    from labelwise.io.tables import read_table
    from labelwise.pool import Pool
    from labelwise.project.data.source import recognise

    names = _write_tables(good)

    def use(folder: Path) -> None:
        path = folder / _present(folder, names, good)
        calls: list[Callable[[], Any]] = [
            lambda: read_table(path),
            lambda: Pool.table(path, columns=["size"], label="label", id="id").inputs([0, 1]),
            lambda: Pool.table(path, text="text").inputs([0, 1]),
            lambda: recognise(path, text="text"),
            lambda: recognise(path, features=("size", "city")),
            lambda: read_own(path, "label").data(0, 0.2).pool.inputs([0]),
            lambda: (own := read_own(path, "size")).features(np.arange(min(3, len(own.table)))),
        ]
        _all_of(calls)

    return Target("tables", use, names)


def _all_of(calls: list[Callable[[], Any]]) -> None:
    """Make every call; a refusal of one does not keep the others from being tried."""
    refused = None
    for call in calls:
        try:
            call()
        except LabelwiseError as error:
            refused = error
    if refused is not None:
        raise refused


def suites(good: Path) -> Target:
    """Suite files of benchmarks."""
    from labelwise.bench.suite.suite import read_suite
    from labelwise.bench.suites import find_suite, names

    files = []
    for name in names():
        files.append(f"{name}.yaml")
        shutil.copy(find_suite(name), good / files[-1])

    def use(folder: Path) -> None:
        suite = read_suite(folder / _present(folder, files, good))
        for job in suite.jobs()[0][:50]:
            _ = job.name, job.file, job.strategy.recipe()

    return Target("suites", use, files)


def records(good: Path) -> Target:
    """Records of a benchmark, and the report of them."""
    from labelwise.bench.report.load_runs import experiment_of, finished_runs, goals_of, joined, source_of
    from labelwise.stats.record import Record, append

    (good / "records").mkdir()
    for strategy, gain in (("random", 0.0), ("margin", 0.1)):
        for seed in range(3):
            path = good / "records" / f"{strategy}-{seed}.jsonl"
            for round in range(4):
                name = f"digits/linear/{strategy}/{seed}"
                metrics = {"accuracy": 0.5 + gain + 0.1 * round}
                append(path, Record(name, strategy, seed, round, 10 + 5 * round, metrics, 0.5, 0.5, picked=[round]))
    names = [f"records/{path.name}" for path in sorted((good / "records").iterdir())]

    def use(folder: Path) -> None:
        source = source_of(folder)
        found = joined([source])
        goals = goals_of([source])
        for name in sorted({experiment_of(record) for record in found}):
            finished_runs(name, found, goals)

    return Target("records", use, names)


def exports(good: Path) -> Target:
    """Files of `labelwise import`: CSV, and the two forms of Label Studio's JSON; planned and applied on a project."""
    from labelwise.project import Project
    from labelwise.project.exchange.changes import apply, plan
    from labelwise.project.exchange.read_labels import read_labels

    (good / "labels.csv").write_text("id,label,note\n" + "".join(f"{n},{'ab'[n % 2]},x\n" for n in range(12)))
    done = {"completed_by": {"id": 1, "email": "a@b.c"}, "lead_time": 2.5, "updated_at": "2024-01-01T00:00:00Z"}
    tasks = [
        {
            "id": n,
            "data": {"al_id": n, "al_ref": f"row {n}", "text": "x"},
            "annotations": [{**done, "result": [{"type": "choices", "value": {"choices": ["ab"[n % 2]]}}]}],
            "predictions": [{"model_version": "m", "result": [{"value": {"number": 1.5}}]}],
        }
        for n in range(6)
    ]
    (good / "studio.json").write_text(json.dumps(tasks))
    flat = [{"id": n, "al_id": n, "choice": "ab"[n % 2], "annotator": 1, "lead_time": 1.5} for n in range(6)]
    (good / "flat.json").write_text(json.dumps(flat))
    files = ["labels.csv", "studio.json", "flat.json"]
    _project(good, rounds=False)

    def use(folder: Path) -> None:
        found = read_labels(folder / _present(folder, files, good), kind="table")
        with contextlib.closing(Project.open(folder / "project")) as project:
            changes = plan(project, found, "import", predictions=True, add_classes=True)
            apply(project, changes, replacing=True)
            project.store.answers()

    return Target("exports", use, files)


def _project(good: Path, rounds: bool) -> None:
    """A project of a table, with two rounds if wanted."""
    from labelwise.project import Project, Settings
    from labelwise.project.loop.heartbeat import HeartbeatWriter
    from labelwise.project.loop.worker import step

    (good / "table.csv").write_text("a,b,c\n" + "\n".join(",".join(map(str, row)) for row in X_ND))
    settings = Settings(
        name="P", kind="table", source="../table.csv", columns=("a", "b", "c"), classes=("a", "b"), k=8,
        test_share=0.3, recipe="random+margin",
    )  # fmt: skip
    with contextlib.closing(Project.create(good / "project", settings)) as project:
        for _ in range(2 if rounds else 0):
            heartbeat = HeartbeatWriter(project.folder)
            while step(project, heartbeat):
                pass
            heartbeat.close("stopped")
            while (task := project.store.next_task("ann")) is not None:
                project.store.answer(task.token, "ann", "label", "ab"[task.row % 2], None)


def projects(good: Path) -> Target:
    """Every file of a project but the database, as the page, the worker and the commands read them."""
    from labelwise.project import Project
    from labelwise.project.data.restore_features import restore_features
    from labelwise.project.exchange.entries import entries
    from labelwise.project.loop.heartbeat import HeartbeatWriter
    from labelwise.project.loop.worker import step
    from labelwise.server.report import report_html

    _project(good, rounds=True)
    skipped = ("store.db", ".lock", ".key", "log.txt")
    files = [
        str(path.relative_to(good))
        for path in sorted(good.rglob("*"))
        if path.is_file() and path.stat().st_size and not path.name.endswith(skipped) and "store.db" not in path.name
    ]
    (good / "project" / "left-out.txt").write_text("row 3: nothing\n")
    files.append("project/left-out.txt")

    def use(folder: Path) -> None:
        where = folder / "project"
        restore_features(where, lambda *_: None)
        with contextlib.closing(Project.open(where)) as project:
            row = project.store.items()[0].row
            calls: list[Callable[[], Any]] = [
                project.meter, project.heartbeat, project.suspects, lambda: project.excluded, lambda: project.view(row),
                lambda: project.neighbours(row), project.better_features, lambda: entries(project),
                lambda: report_html(project), lambda: _step(project),
            ]  # fmt: skip
            _all_of(calls)

    def _step(project: Any) -> None:
        heartbeat = HeartbeatWriter(project.folder)
        try:
            step(project, heartbeat)
        finally:
            heartbeat.close("stopped")

    return Target("projects", use, files)


def stores(good: Path) -> Target:
    """The database of a project."""
    import sqlite3

    from labelwise.project import Project

    _project(good, rounds=True)
    with contextlib.closing(sqlite3.connect(good / "project" / "store.db")) as base:
        base.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def use(folder: Path) -> None:
        with contextlib.closing(Project.open(folder / "project")) as project:
            store = project.store
            calls: list[Callable[[], Any]] = [
                store.items, store.classes, store.rounds, store.events, store.answers, store.progress, store.agreement,
                lambda: [store.picks(one.number) for one in store.rounds()], lambda: store.peek("bob", 3),
                lambda: store.next_task("bob"), lambda: store.add_class("new", "bob"), lambda: store.undo("ann"),
                project.meter,
            ]  # fmt: skip
            _all_of(calls)

    return Target("stores", use, ["project/store.db"])


def models(good: Path) -> Target:
    """A folder that `labelwise model` wrote, and predictions with it."""
    from labelwise.project import Project, SavedModel
    from labelwise.project.predict.saved_model import model_files, write_model_folder
    from labelwise.project.predict.trained import train

    _project(good, rounds=True)
    with contextlib.closing(Project.open(good / "project")) as project:
        write_model_folder(good / "model", model_files("P", *train(project)))
    shutil.rmtree(good / "project")

    def use(folder: Path) -> None:
        SavedModel.load(folder / "model").predict(folder / "table.csv").csv()

    return Target("models", use, ["model/model.json", "model/model.json", "model/model.npz", "table.csv"])


def embeddings(good: Path) -> Target:
    """Files of `--embeddings`."""
    from labelwise.project.data.embeddings import read_embeddings
    from labelwise.project.data.encoders import EMBEDDINGS
    from labelwise.project.data.source import open_data

    (good / "table.csv").write_text("a,b,c\n" + "\n".join(",".join(map(str, row)) for row in X_ND))
    np.save(good / "e.npy", X_ND)
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"embedding": X_ND.tolist()}), good / "e.parquet")
    from labelwise.project import Settings

    settings = Settings(name="P", kind="table", source="table.csv", columns=("a", "b", "c"))

    def use(folder: Path) -> None:
        data = open_data(settings, folder)
        name = _present(folder, ["e.npy", "e.parquet"], good)
        read_embeddings(EMBEDDINGS + name, folder, data).encode(range(3))

    return Target("embeddings", use, ["e.npy", "e.parquet"])


def sessions(good: Path) -> Target:
    """Every file of a session folder: settings, answers, their head, the last batch and the last fit."""
    from sklearn.linear_model import LogisticRegression

    from labelwise import Session

    def learner() -> Any:
        return LogisticRegression(max_iter=20)

    session = Session(X_ND, learner(), recipe="random+margin", classes=2, folder=good / "session")
    session.tell(range(6), [0, 1] * 3)
    session.ask(2)
    files = [str(path.relative_to(good)) for path in sorted((good / "session").rglob("*")) if path.is_file()]

    def use(folder: Path) -> None:
        session = Session.load(folder / "session", X_ND, learner())
        session.ask(2)
        session.tell([20], [1])
        session.history_table()

    return Target("sessions", use, files)


def checkpoints(good: Path) -> Target:
    """The checkpoint of a selection that was killed."""
    from labelwise.shards import Shards
    from labelwise.shards.checkpoint.journal import FolderJournal, Tuning

    class Killed(BaseException):
        pass

    def select(folder: Path) -> None:
        labelwise.select("badge", 9, probs=P_NC, embedding=X_ND, folder=folder / "state")

    run, tuning, asked = Shards._run, FolderJournal.tuning, [0]

    def counted(self: Shards, fn: Any) -> Any:
        asked[0] += 1
        if asked[0] == 8:
            raise Killed
        return run(self, fn)

    Shards._run = counted  # type: ignore[method-assign]
    FolderJournal.tuning = Tuning(every=0.0, share=float("inf"))
    try:
        select(good)
    except Killed:
        pass
    finally:
        Shards._run, FolderJournal.tuning = run, tuning  # type: ignore[method-assign]
    files = [str(path.relative_to(good)) for path in sorted(good.rglob("*")) if path.is_file() and path.stat().st_size]
    return Target("checkpoints", select, files)


# --- functions and the page ------------------------------------------------------------------------------------------

SIZES: list[Any] = [
    0,
    -1,
    1,
    3,
    24,
    25,
    2**31,
    2**63,
    2**64,
    float("nan"),
    2.5,
    "3",
    None,
    True,
    [3],
    np.int8(3),
    np.float64(3),
]
NUMBERS = [float("nan"), float("inf"), -float("inf"), 1e300, -1e300, 1e-300, 5e-324, 65520.0, -1.0, 0.0, 2.0, 1e19]


def _odd_array(array: np.ndarray, chance: random.Random) -> Any:
    """`array` with odd numbers, another type, another shape, or another thing in its place."""
    if not array.ndim or not array.size or array.dtype.kind not in "fiu":
        return chance.choice(ODD)
    with np.errstate(all="ignore"):
        return _changed_array(array, chance)


def _changed_array(array: np.ndarray, chance: random.Random) -> Any:
    kind = chance.randrange(12)
    if kind < 5:
        made = array.astype(np.float64)
        rows = chance.sample(range(len(made)), chance.choice((1, 3, len(made))))
        made[rows] = chance.choice(NUMBERS)
        return made.astype(chance.choice((np.float64, np.float32, np.float16)))
    if kind == 5:
        return array * np.array(chance.choice(NUMBERS))
    if kind == 6:
        return array.astype(chance.choice((np.int8, np.int64, bool, object, "U8", np.complex128, "M8[s]")))
    if kind == 7:
        return array[: chance.choice((0, 1, 2, 23))]
    if kind == 8:
        return chance.choice(
            (
                array.T,
                array[None],
                array[..., None],
                array.reshape(-1),
                array[..., :0],
                array[:, :1] if array.ndim > 1 else array,
            )
        )
    if kind == 9:
        return np.full_like(array, chance.choice((0.0, 1.0, 0.5)))
    if kind == 10:
        return array.tolist()
    return chance.choice(ODD)


def select_call(chance: random.Random) -> Callable[[], Any]:
    """`lw.select` with any strategy, with one to three odd arguments."""
    from labelwise import strategies

    draws_NKC = np.log(np.stack([np.roll(P_NC, shift, 0) for shift in range(4)], 1))
    ids: list[Any] = [
        None, np.arange(24)[::-1], [2**63 + n for n in range(24)], [2**63 - 1 - n for n in range(24)], [0] * 24,
        list(range(23)),
        [-1 - n for n in range(24)], [f"row {n}" for n in range(24)], [float(n) for n in range(24)],
        [n + 0.5 for n in range(24)],
        [float("nan")] * 24, [None] * 24, [(n, "a") for n in range(24)], [[n] for n in range(24)], "x" * 24, 5,
        np.arange(24) * 10**17,
        [2**70 + n for n in range(24)],
    ]  # fmt: skip
    arrays: dict[str, Any] = {
        "probs": P_NC, "label_probs": P_NC[::-1].copy(), "embedding": X_ND, "log_probs": draws_NKC,
        "basis": np.c_[np.ones(24), X_ND],
        "duals": X_ND[:, 0], "grad_sqnorm": X_ND[:, 1] ** 2, "grad_dot": X_ND[:, 2],
    }  # fmt: skip
    labelled: Any = {
        "probs": P_NC[:6], "embedding": X_ND[:6] + 1, "basis": np.c_[np.ones(6), X_ND[:6]], "duals": X_ND[:6, 0],
        "y": np.arange(6) % 3,
    }  # fmt: skip
    name: Any = chance.choice([*strategies.names(), "recommended"])
    given: dict[str, Any] = {"k": 4, "seed": 0}
    says = [name]
    for _ in range(chance.randint(1, 3)):
        what = chance.choice(
            ("k", "seed", "ids", "array", "array", "array", "array", "labelled", "drop", "max_memory", "strategy")
        )
        if what == "k":
            given["k"] = chance.choice(SIZES)
        elif what in ("seed", "max_memory"):
            given[what] = chance.choice(ODD)
        elif what == "ids":
            given["ids"] = chance.choice(ids)
        elif what == "array":
            key = chance.choice(sorted(arrays))
            arrays[key] = (
                _odd_array(np.asarray(arrays[key]), chance) if isinstance(arrays[key], np.ndarray) else arrays[key]
            )
            says.append(key)
        elif what == "labelled" and isinstance(labelled, dict):
            key = chance.choice(sorted(labelled))
            value = labelled[key]
            labelled = dict(labelled) | {key: _odd_array(value, chance) if isinstance(value, np.ndarray) else value}
            labelled = labelled if chance.random() < 0.9 else chance.choice(ODD)
        elif what == "drop":
            arrays.pop(chance.choice(sorted(arrays)), None)
        elif what == "strategy" and chance.random() < 0.3:
            name = chance.choice(ODD)
        says.append(what)
    if chance.random() < 0.5:
        given["labelled"] = labelled

    def call() -> Any:
        picks = labelwise.select(name, **given, **arrays)
        assert len(set(picks.ids.tolist())) == len(picks)
        assert np.isfinite(picks.weights).all()
        return picks

    call.says = f"{says} {given.get('k')!r:.20}"  # type: ignore[attr-defined]
    return call


def session_call(chance: random.Random) -> Callable[[], Any]:
    """A session or a pool with odd arguments: settings, rows, ids, labels, `ask`, `tell`, `predict`."""
    from sklearn.linear_model import LogisticRegression

    from labelwise import Pool, Session, TorchLearner

    values: list[Any] = [*SIZES, *ODD]
    odd, other = chance.choice(values), chance.choice(values)
    rows = _odd_array(X_ND, chance) if chance.random() < 0.3 else X_ND
    kind = chance.randrange(9)

    def session(**settings: Any) -> Any:
        made = Session(rows, LogisticRegression(max_iter=10), recipe="random+margin", **{"classes": 2, **settings})
        made.tell([0, 1, 2, 3], [0, 1, 0, 1])
        return made

    def call() -> Any:
        if kind == 0:
            return session(**{chance.choice(("classes", "seed", "batch", "max_memory", "task")): odd}).ask(2)
        if kind == 1:
            return session().ask(odd)
        if kind == 2:
            return session().tell(odd if chance.random() < 0.5 else [odd], other if chance.random() < 0.5 else [other])
        if kind == 3:
            return session().tell([5, odd], [0, other])
        if kind == 4:
            return session().predict(_odd_array(X_ND, chance))
        if kind == 5:
            return session().predict(ids=odd if chance.random() < 0.5 else [0, odd])
        if kind == 6:
            return Pool.of(
                rows, ids=chance.choice((None, odd, [odd] * 24)), labels=chance.choice((None, other, [other] * 24))
            )
        if kind == 7:
            name = chance.choice(("epochs", "batch", "lr", "weight_decay", "holdout", "keep"))
            given: Any = (
                3 if name == "epochs" and isinstance(odd, int) and odd > 1000 else odd
            )  # trained as asked, for days
            learner = TorchLearner(_line(), **{name: given})
            made = Session(X_ND.astype(np.float32), learner, recipe="random+margin", classes=2)
            made.tell([0, 1, 2, 3], [0, 1, 0, 1])
            return made.ask(2)
        return session().retract(odd if chance.random() < 0.5 else [0, odd])

    call.says = f"kind {kind} {odd!r:.30} {other!r:.30}"  # type: ignore[attr-defined]
    return call


def _line() -> Any:
    import torch

    return torch.nn.Linear(3, 2)


class Page:
    """Requests to the labelling page, in process: a reply of 500 is raw."""

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Using `httpx`")  # of a newer name of the same package
            from fastapi.testclient import TestClient

        from labelwise.project import Project
        from labelwise.server import Auth, make_app

        _project(folder, rounds=True)
        self.project = Project.open(folder / "project")
        auth = Auth.make(self.project.folder)
        self.client = TestClient(
            make_app(self.project, auth), base_url="http://127.0.0.1", raise_server_exceptions=False
        )
        self.client.get("/")
        session = auth.read(self.client.cookies[auth.cookie])
        assert session is not None
        self.client.headers["origin"] = "http://127.0.0.1"
        self.client.headers["x-csrf-token"] = auth.csrf(session)
        assert self.client.post("/who", data={"name": "ann"}).status_code == 204

    def call(self, chance: random.Random) -> Callable[[], Any]:
        """One odd request."""
        values = [str(one) for one in ODD if one is not None] + ["1", "a", "b", "label", "skip", "test", "large"]
        values = [one.encode("utf-8", "replace").decode()[:9000] for one in values]
        paths = [
            "/",
            "/card",
            "/status",
            "/gallery",
            "/report",
            "/image/{}",
            "/neighbours/{}",
            "/answer",
            "/undo",
            "/class",
        ]
        paths += [
            "/review",
            "/decide",
            "/people",
            "/history",
            "/download/history.csv",
            "/change",
            "/who",
            "/download/labels.csv",
            "/download/predictions.csv",
            "/static/{}",
            "/{}",
        ]
        path, odd = chance.choice(paths), chance.choice(values)
        names = [
            "token",
            "kind",
            "value",
            "seconds",
            "note",
            "name",
            "row",
            "label",
            "person",
            "slice",
            "text",
            "page",
            "size",
            "choice",
            "seen",
            "role",
            "show",
            odd[:20],
        ]
        given = {name: chance.choice(values) for name in chance.sample(names, chance.randint(0, 6))}
        if path == "/answer" and chance.random() < 0.7:
            task = self.project.store.next_task("ann")
            given |= {"token": task.token if task else "x", "kind": chance.choice(("label", "skip", odd))}
        method = (
            "GET"
            if path.startswith(("/image", "/gallery", "/neigh", "/static", "/review", "/history"))
            or chance.random() < 0.2
            else "POST"
        )
        headers = {}
        if chance.random() < 0.3:
            name = chance.choice(
                (
                    "host",
                    "origin",
                    "cookie",
                    "x-csrf-token",
                    "content-type",
                    "sec-fetch-site",
                    "range",
                    "x-forwarded-for",
                )
            )
            headers[name] = "".join(one for one in odd if " " <= one < "\x7f")[:500] or chance.choice(
                ("[::1", "multipart/form-data", "bytes=9-1")
            )

        def call() -> Any:
            target = path.format(
                odd.replace("\0", "%00").replace("?", "%3F").replace("#", "%23").replace("\n", "%0A")[:500]
            )
            sent = {"params": given} if method == "GET" else {"data": given}
            reply = self.client.request(method, target, headers=headers, **sent)
            if reply.status_code >= 500:
                log = (self.project.folder / "log.txt").read_text(errors="replace").splitlines()[-1:]
                raise RuntimeError(f"{reply.status_code} {log}"[-300:])
            if reply.status_code >= 400:
                raise LabelwiseError(reply.text or "empty")

        call.says = f"{method} {path} {given!r:.80} {headers!r:.60}"  # type: ignore[attr-defined]
        return call


TARGETS: dict[str, Callable[[Path], Target]] = {
    "arrays": arrays, "tables": tables, "suites": suites, "records": records, "exports": exports,
    "embeddings": embeddings,
    "projects": projects, "stores": stores, "models": models, "sessions": sessions, "checkpoints": checkpoints,
}  # fmt: skip
CALLS: dict[str, Callable[[random.Random], Callable[[], Any]]] = {"select": select_call, "session": session_call}
WORDS = {
    "arrays": "`.npy`, `.npz` and Parquet files of `labelwise select`",
    "tables": "`.csv`, `.tsv`, `.csv.gz` and Parquet tables: pool, features, answers",
    "suites": "suites (YAML)",
    "records": "records of benchmarks",
    "exports": "`labelwise import`: CSV and Label Studio JSON, planned and applied",
    "embeddings": "files of `--embeddings`",
    "projects": "files of a project: `project.yaml`, features, models, meter, heartbeat, table",
    "stores": "`store.db`",
    "models": "folders of `labelwise model`, and predictions with them",
    "sessions": "files of a session folder",
    "checkpoints": "checkpoints of a selection",
    "select": "`lw.select`: every strategy, odd arrays, ids, k, seeds",
    "session": "`Session`, `Pool`, `TorchLearner`: odd arguments",
    "page": "requests to the labelling page",
}


def run(name: str, seed: int, count: int, start: int = 0, keep: Path | None = None) -> Outcome:
    """Try `count` inputs of the target of that name."""
    if name in CALLS:
        return fuzz_calls(name, CALLS[name], seed, count, start)
    with tempfile.TemporaryDirectory() as folder:
        if name == "page":
            page = Page(Path(folder))
            try:
                return fuzz_calls(name, page.call, seed, count, start)
            finally:
                page.project.close()
        return fuzz(TARGETS[name](Path(folder)), Path(folder), seed, count, start, keep)


def text_of(found: dict[str, Outcome], seed: int, seconds: float) -> str:
    """The part of the page."""
    total = sum(one.inputs for one in found.values())
    raw = sum(sum(one.raw.values()) for one in found.values())
    places = len({place for one in found.values() for place in one.raw})
    lines = [
        "## Damaged files and odd arguments",
        "",
        f"{total:,} inputs from seed {seed}, in {seconds / 60:.0f} minutes of processor time: {raw:,} raw exceptions "
        f"at {places} places. An input is read, or refused by an error of Labelwise that says what is wrong; anything "
        "else is raw. Half of the changed files that have a checksum get one that fits, so that what reads them behind "
        "it is tried too. A request to the page is raw if its reply is 500, and any input that takes more than "
        f"{CPU_SECONDS:.0f} s of processor time.",
        "",
        "| input | inputs | read | refused | raw |",
        "|---|---|---|---|---|",
    ]
    for name, one in found.items():
        lines.append(f"| {WORDS[name]} | {one.inputs:,} | {one.read:,} | {one.refused:,} | {sum(one.raw.values())} |")
    for one in found.values():
        lines += [f"\nRaw: `{place}`, as in `{one.examples[place][:100]}`." for place in one.raw]
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=int, default=4000, help="of each reader")
    parser.add_argument("--only", default=",".join(WORDS), help="names of readers, separated by commas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0, help="number of the first input")
    parser.add_argument("--keep", type=Path, help="put the first input of each raw exception there")
    parser.add_argument("--dry", action="store_true", help="print the part, and leave the page as it is")
    options = parser.parse_args()
    found: dict[str, Outcome] = {}
    began = time.process_time()
    for name in options.only.split(","):
        found[name] = run(name, options.seed, options.inputs, options.start, options.keep)
        one = found[name]
        print(
            f"{name}: {one.inputs} inputs, {one.read} read, {one.refused} refused, {sum(one.raw.values())} raw",
            flush=True,
        )
        for place, count in one.raw.most_common():
            print(f"  {count} {place} | {one.examples[place][:300]}", flush=True)
    text = text_of(found, options.seed, time.process_time() - began)
    print(text) if options.dry else write_part("fuzz", text)
    sys.exit(any(one.raw for one in found.values()))


if __name__ == "__main__":
    main()
