"""Flip single bits of everything a session and a project store, and count what is found, harmless or silent.

    python benchmarks/flips.py --flips 600      # of each; writes its part of docs/results/reliability.md

A session with a model, a batch that waits for answers and the journal of a killed selection, and a project of images
with two rounds, two people, an unreadable image, and a write-ahead log of its store. In a copy of the folder one bit of
one file is flipped (files in turn, bits at random), then everything is read as the product reads it. Found: an error of
Labelwise, or a warning, names it. Harmless: what is read is the same. Silent: it is not, and nobody says so. Crash: an
error that is not one of Labelwise. Silent and crash must be 0. A lease may be lost, which costs no answer; one that
gives another row counts as silent.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import random
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import labelwise as lw
from labelwise.errors import LabelwiseError, StoreError
from labelwise.io.checked import write_checked
from labelwise.io.progress_bar import DelayedBar
from labelwise.project import Project, Settings
from labelwise.project.data.drift import recorded_sizes
from labelwise.project.data.source import Images
from labelwise.project.exchange.studio_sync import FILE as LINK
from labelwise.project.exchange.studio_sync import StudioLink, read_link
from labelwise.project.loop.heartbeat import HeartbeatWriter
from labelwise.project.loop.rounds import read_notes
from labelwise.project.loop.stored_model import read_model, round_folder
from labelwise.project.loop.worker import step
from labelwise.project.store import leases
from labelwise.server import Auth
from reliability_page import write_part

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from killed import killed_at  # type: ignore[import-not-found]

OUTCOMES = ("found", "harmless", "silent", "crash")
Read = Callable[[Path], Any]
_MORE = 5  # times that the files of a store, which hold most, come again in the turn
_UNREAD = {"store.db-shm", "worker.lock", "page.lock", "log.txt"}  # made again, or never read back


def run(whole: Path, read: Read, flips: int, seed: int) -> dict[str, Counter[str]]:
    """Outcomes by file.

    Args:
        whole: the folder, which stays as it is.
        read: everything that is read of such a folder, in a form that can be compared.
        flips: how many bits are flipped, one at a time, the files in turn.
        seed: source of chance.
    """
    chance, found = random.Random(seed), dict[str, Counter[str]]()
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / whole.name
        expected = _read(_copied(whole, copy), read)
        if expected[0] != "read":
            raise SystemExit(f"the folder as it is cannot be read: {expected}")
        names = sorted(str(path.relative_to(whole)) for path in whole.rglob("*") if path.is_file())
        names = [name for name in names if Path(name).name not in _UNREAD and (whole / name).stat().st_size]
        names += [name for name in names if name in ("store.db", "store.db-wal")] * _MORE
        with DelayedBar(f"flipping bits of a {whole.name}", flips) as bar:
            for number in range(flips):
                name = names[number % len(names)]
                path = _copied(whole, copy) / name
                data = bytearray(path.read_bytes())
                bit = chance.randrange(8 * len(data))
                data[bit // 8] ^= 1 << bit % 8
                path.write_bytes(data)
                outcome = _read(copy, read)
                kind = outcome[0] if outcome[0] != "read" else "harmless" if outcome == expected else "silent"
                found.setdefault(name, Counter())[kind] += 1
                if kind in ("silent", "crash"):
                    print(f"{kind}: bit {bit % 8} of byte {bit // 8} of {name}: {outcome[1]}"[:400])
                bar(number + 1, flips)
    return found


def _copied(whole: Path, copy: Path) -> Path:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(whole, copy)
    return copy


def _read(folder: Path, read: Read) -> tuple[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return "read", read(folder)
    except (LabelwiseError, Warning) as error:
        return "found", str(error)
    except Exception as error:
        return "crash", f"{type(error).__name__}: {error}"


def plain(value: Any) -> Any:
    """A value in a form that `==` compares whole: arrays and tensors as their bytes."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return repr(value)


# --- a session -------------------------------------------------------------------------------------------------------

X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


def _learner() -> lw.TorchLearner:
    return lw.TorchLearner(nn.Linear(4, 2), epochs=2, restart=False)


def make_session(folder: Path) -> None:
    """A session with four entries, a model, a batch that waits for its answers, and the journal of a killed `ask`."""
    session = lw.Session(X, _learner(), recipe="kcenter", classes=2, folder=folder, seed=3)
    for start in (0, 6, 12):
        session.tell(range(start, start + 6), Y[start : start + 6])
        session.ask(2)
    session.tell([40, 41], Y[40:42])
    killed_at(8, lambda: session.ask(9))


def read_session(folder: Path) -> Any:
    """What a session has stored, and what it asks for next."""
    session = lw.Session.load(folder, X, _learner())
    state = session.state()
    fit = None if state.fit is None else state.fit.model.state_dict()
    own = [list(session.ledger), session.classes, session.key, session.round, state.pending, fit]
    return plain([*own, session.ledger.weights, session.ask(9)])


# --- a project -------------------------------------------------------------------------------------------------------

PEOPLE = ("ann", "bob")


def make_project(folder: Path) -> None:
    """A project of images, copied while it is in use, so that part of its store is in the write-ahead log."""
    from PIL import Image

    home = folder.parent
    (home / "photos").mkdir()
    for number in range(40):
        colour = np.full((8, 8, 3), (number % 2 * 200, 3 * number, 40), np.uint8)
        Image.fromarray(colour).save(home / "photos" / f"{number:02d}.png")
    (home / "photos" / "broken.png").write_bytes(b"no image")
    settings = Settings(
        name="Photos", kind="image", source="../photos", classes=("dark", "red"), encoder="pixels", k=10, test_share=0.3
    )
    (home / "live").mkdir()
    with contextlib.closing(Project.create(home / "live", settings)) as project:
        write_checked(project.folder / LINK, dataclasses.asdict(StudioLink("http://127.0.0.1:1", "key", 3)))
        for _ in range(2):
            _work(project)
            while tasks := [task for who in PEOPLE if (task := project.store.next_task(who)) is not None]:
                for task, who in zip(tasks, PEOPLE):
                    project.store.answer(task.token, who, "label", ("dark", "red")[task.row % 2], 2.0)
        _work(project)
        for who in PEOPLE:
            task = project.store.next_task(who)
            assert task is not None
            project.store.answer(task.token, who, "label", ("dark", "red")[task.row % 2], 2.0)
            project.store.next_task(who)
        project.store.undo("ann")
        project.store.decide("rita", next(iter(project.store.answers())), "unsure", None, "a decision")
        for name, role in (("rita", "own"), ("ann", "label"), ("rita", "own"), ("ann", None)):
            project.store.set_annotator(name, role, "rita")  # type: ignore[arg-type]
        Auth.make(project.folder)  # the secret of the page
        shutil.copytree(project.folder, folder)
    shutil.rmtree(home / "live")


def _work(project: Project) -> None:
    heartbeat = HeartbeatWriter(project.folder)
    try:
        while step(project, heartbeat):
            pass
    finally:
        heartbeat.close("stopped")


def read_project(folder: Path, tokens: dict[str, tuple[int, str]] | None = None) -> Any:
    """What a project has stored, as the page, the worker, exports and reports read it."""
    with contextlib.closing(Project.open(folder)) as project:
        store = project.store
        rounds = store.rounds()
        notes = [read_notes(folder, one.number) for one in rounds]
        if project.heartbeat().message.startswith("worker.json cannot be read") or None in notes:
            raise StoreError("named on the page, or measured again")
        with store._database.reading() as connection:
            stored_leases = [leases.by_token(connection, token) for token in tokens or ()]
        found = [one for one in stored_leases if one is not None]
        wrong = [one for one in found if (tokens or {})[one.token] != (one.row, one.who)]
        heartbeat = dataclasses.replace(project.heartbeat(), state="idle")  # its age depends on the clock
        own = [project.settings, project.warnings, project.excluded, project.meter(), project.suspects(), heartbeat.pid]
        pool = project.pool
        sizes = recorded_sizes(folder, project.data) if isinstance(project.data, Images) else None
        data = [pool.ids, pool.inputs(pool.ids), project.scale(), project.feature_info, sizes]
        models = [read_model(round_folder(folder, one.number)) for one in rounds]
        stored = [store.items(), store.classes(), rounds, [store.picks(one.number) for one in rounds], store.events()]
        progress = dataclasses.replace(store.progress(), leased=0)
        stored += [store.answers(), store.annotators(), progress, store.people, read_link(folder), wrong]
        stored.append(Auth.make(folder).secret)
        return plain([own, data, models, notes, stored])


def tokens_of(folder: Path) -> dict[str, tuple[int, str]]:
    """The leases of a project: row and person by token."""
    from sqlalchemy import select

    from labelwise.project.store.schema import lease

    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        shutil.copytree(folder.parent, home / "copy")
        with (
            contextlib.closing(Project.open(home / "copy" / folder.name)) as project,
            project.store._database.reading() as connection,
        ):
            return {one.token: (one.row, one.who) for one in connection.execute(select(lease))}


# --- the page --------------------------------------------------------------------------------------------------------


def table_of(found: dict[str, Counter[str]]) -> str:
    """Outcomes by file, and in all."""
    lines = ["| file | flips | found | harmless | silent | crash |", "|---|---|---|---|---|---|"]
    total: Counter[str] = Counter()
    for name, counts in sorted(found.items()):
        total += counts
        lines.append(f"| `{name}` | {counts.total()} | {' | '.join(str(counts[one]) for one in OUTCOMES)} |")
    lines.append(f"| all | {total.total()} | {' | '.join(str(total[one]) for one in OUTCOMES)} |")
    return "\n".join(lines)


def page(flips: int, seed: int) -> tuple[str, int]:
    """The part of the page, and how many flips were silent or a crash."""
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        make_session(home / "session")
        session = run(home / "session", read_session, flips, seed)
        place = home / "in"
        place.mkdir()
        make_project(place / "project")
        tokens = tokens_of(place / "project")
        shutil.move(place / "photos", home / "photos")

        def read(folder: Path) -> Any:
            if not (folder.parent / "photos").exists():
                shutil.copytree(home / "photos", folder.parent / "photos")
            return read_project(folder, tokens)

        project = run(place / "project", read, flips, seed)
    bad = sum(counts["silent"] + counts["crash"] for one in (session, project) for counts in one.values())
    text = f"""## Flipped bits

`python benchmarks/flips.py --flips {flips} --seed {seed}` flips one bit at a time in a copy of a folder and reads
all of it. Found: an error or a warning names it. Harmless: what is read is the same, as with unused bytes of a database
page, or a lease is lost, which costs no answer. Silent: what is read differs and nobody says so. Crash: another error.

### A session

{table_of(session)}

### A project, part of its store in the write-ahead log

{table_of(project)}
"""
    return text, bad


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n\n")[0])
    parser.add_argument("--flips", type=int, default=600, help="bits of each folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dry", action="store_true", help="print the part, do not write it")
    given = parser.parse_args()
    torch.set_num_threads(1)
    text, bad = page(given.flips, given.seed)
    if given.dry:
        print(text)
    else:
        write_part("flips", text)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
