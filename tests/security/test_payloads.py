"""A payload in place of every file that is read: nothing runs, and what is wrong is said by an error of ours."""

import contextlib
import hashlib
import io
import json
import os
import pickle
import re
import shutil
import struct
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import labelwise as lw
from fake_project import work
from killed import killed_at
from labelwise.bench.report.load_runs import records_of, source_of
from labelwise.bench.suite.runner import changed_environment, run_suite
from labelwise.bench.suite.suite import read_suite
from labelwise.errors import ArgumentError, LabelwiseError, StoreError
from labelwise.io.checked import with_checksum, write_checked, write_sealed
from labelwise.io.tables import read_table
from labelwise.io.values import read_value, write_value
from labelwise.project import Project, Settings
from labelwise.project.backup import back_up, restore
from labelwise.project.data.embeddings import encoder_for
from labelwise.project.data.restore_features import restore_features
from labelwise.project.exchange.export import export
from labelwise.project.exchange.read_labels import read_labels
from labelwise.project.exchange.studio_sync import read_link
from labelwise.project.loop.stored_model import read_model
from labelwise.project.predict.saved_model import SavedModel, model_files, write_model_folder
from labelwise.project.predict.trained import train
from labelwise.project.repair import check_project

X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def payloads(ran):
    """Files that run code where they are read carelessly."""
    bomb, objects = Bomb(ran), np.empty(1, object)
    objects[0] = bomb
    found = {"pickle": pickle.dumps(bomb), "old pickle": pickle.dumps(bomb, 0)}
    for name, write in {
        "torch": lambda file: torch.save({"answers": 1, "ids": torch.arange(3), "state": bomb}, file),
        "old torch": lambda file: torch.save(bomb, file, _use_new_zipfile_serialization=False),
        "npy": lambda file: np.save(file, objects, allow_pickle=True),
        "npz": lambda file: np.savez(file, weight=objects, bias=objects, classes=objects, labels=objects),
    }.items():
        file = io.BytesIO()
        write(file)
        found[name] = file.getvalue()
    call = f'!!python/object/apply:os.mkdir ["{ran}"]'
    found["yaml"] = f"version: 1\nname: {call}\nkind: {call}\nsource: {call}\n".encode()
    tree = json.dumps({"record": ["os:mkdir", [["path", str(ran)]]]}).encode()
    found["value"] = struct.pack("<Q", len(tree)) + tree
    return found


def session_folder(folder):
    """A session with a ledger, a fit that training continues from, a pending batch and the journal of an `ask`."""
    learner = lw.TorchLearner(nn.Linear(4, 2), epochs=2, restart=False)
    session = lw.Session(X, learner, recipe="kcenter", classes=2, folder=folder)
    session.tell(range(6), Y[:6])
    session.ask(2)
    session.tell([20, 21], Y[20:22])
    killed_at(8, lambda: session.ask(9))

    def use():
        loaded = lw.Session.load(folder, X, learner)
        loaded.ask(9)

    return use


def selection_folder(folder):
    """The journal of a selection that was killed."""

    def select():
        lw.select("badge", 9, probs=np.full((40, 2), 0.5), embedding=X, folder=folder)

    killed_at(8, select)
    return select


def project_folder(folder):
    """A project with a round, a model, a measurement and labels."""
    table = folder.parent / "table.csv"
    table.write_text("\n".join(["a,b,c,d", *(",".join(map(str, row)) for row in X), "1,2,3,4,5"]))
    settings = Settings(
        name="P", kind="table", source="../table.csv", columns=tuple("abcd"), classes=("no", "yes"), k=8, test_share=0.3
    )
    folder.mkdir()
    project = Project.create(folder, settings)
    for _ in range(2):
        work(project)
        while (task := project.store.next_task("ann")) is not None:
            project.store.answer(task.token, "ann", "label", ("no", "yes")[Y[task.row]], None)
    work(project)
    write_checked(folder / "label-studio.json", {"url": "http://127.0.0.1", "key": "k", "project": 1})
    project.close()

    def use():
        check_project(folder)
        restore_features(folder, lambda *_: None)
        with contextlib.closing(Project.open(folder)) as opened:
            opened.meter(), opened.heartbeat(), opened.suspects(), opened.excluded, read_link(folder)
            work(opened)
            opened.session()

    return use


def model_folder(folder):
    """A model that `labelwise model` has written."""
    project_folder(folder.parent / "project")
    with contextlib.closing(Project.open(folder.parent / "project")) as project:
        trained, held_out = train(project)
        write_model_folder(folder, model_files("P", trained, held_out))
    return lambda: SavedModel.load(folder).predict(folder.parent / "table.csv")


def run_folder(folder):
    """A run of `bench run`."""
    file = folder.parent / "suite.yaml"
    file.write_text(
        "name: tiny\ndatasets: [{name: digits, limit: 40}]\nmodels: [{name: mlp, hidden: [4], epochs: 1}]\n"
        "strategies: [random]\nseeds: 1\nstart: 8\nk: 4\nrounds: 1\n"
    )

    def use():
        suite = read_suite(folder / "config.yaml" if (folder / "config.yaml").exists() else file)
        list(run_suite(suite, file.read_text(), folder, processes=0))
        changed_environment(folder)
        records_of(folder), source_of(folder)

    use()
    return use


def export_folder(folder):
    """Labels in every format that `labelwise import` reads, and vectors as `--embeddings` takes them."""
    project_folder(folder.parent / "project")
    folder.mkdir()
    with contextlib.closing(Project.open(folder.parent / "project")) as project:
        export(project, folder / "labels.csv")
        export(project, folder / "labels.parquet")
        export(project, folder / "tasks.json", "label-studio")
    np.save(folder / "vectors.npy", X)

    def use():
        with contextlib.closing(Project.open(folder.parent / "project")) as project:
            for path in sorted(folder.iterdir()):
                with contextlib.suppress(LabelwiseError):
                    if path.suffix == ".npy":
                        encoder_for(f"embeddings:{path.resolve()}", "table", folder, project.data)
                    elif path.suffix == ".parquet":
                        read_table(path, ["label"])
                    else:
                        read_labels(path)

    return use


def backup_folder(folder):
    """A backup of a project."""
    project_folder(folder.parent / "project")
    folder.mkdir()
    back_up(folder.parent / "project", folder / "project.backup")

    def use():
        shutil.rmtree(folder.parent / "restored", ignore_errors=True)
        restore(folder / "project.backup", folder.parent / "restored")

    return use


def _files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


EXPECTED = {
    session_folder: {"session.json", "answers.jsonl", "asked.json"},
    selection_folder: {"about.json", "progress.json", "answers.bin"},
    project_folder: {
        *(
            "project.yaml",
            "store.db",
            "store.db.head",
            "meter.json",
            "worker.json",
            "left-out.txt",
            "label-studio.json",
        ),
        *("features/features.npy", "features/ids.npy", "features/scale.npy", "features/about.json"),
        *("rounds/002/model.npz", "rounds/002/notes.json", "rounds/002/suspects.json"),
    },
    model_folder: {"model.json", "model.npz", "predict.py"},
    run_folder: {"environment.json"},
    export_folder: {"labels.csv", "labels.parquet", "tasks.json", "vectors.npy"},
    backup_folder: {"project.backup"},
}


@pytest.mark.slow
@pytest.mark.parametrize("make", list(EXPECTED))
def test_no_file_of_a_folder_can_run_code(make, tmp_path):
    """Every file that is there is replaced by every payload in turn; new files are found by themselves."""
    folder, ran = tmp_path / "one", tmp_path / "ran"
    use = make(folder)
    names = _files(folder)
    assert EXPECTED[make] <= set(names)
    shutil.copytree(folder, tmp_path / "whole")
    use()  # as it is, it can be used
    for name in names:
        for kind, payload in payloads(ran).items():
            shutil.rmtree(folder, ignore_errors=True)  # a finished selection removes its own
            shutil.copytree(tmp_path / "whole", folder)
            (folder / name).write_bytes(payload)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with contextlib.suppress(LabelwiseError):  # any other error is a fault
                    use()
            assert not ran.exists(), f"{name} as a {kind} has run code"


def test_the_payloads_are_live(tmp_path):
    """Read carelessly, each does what the test above looks for."""
    for kind, read in {
        "pickle": pickle.load,
        "torch": lambda file: torch.load(file, weights_only=False),
        "npy": lambda file: np.load(file, allow_pickle=True),
        "npz": lambda file: np.load(file, allow_pickle=True)["weight"],
    }.items():
        ran = tmp_path / kind
        read(io.BytesIO(payloads(ran)[kind]))
        assert ran.exists()


def test_right_checksums_do_not_help_a_payload(tmp_path):
    """Who plants a payload can compute its checksum as well."""
    folder, ran = tmp_path / "one", tmp_path / "ran"
    use = selection_folder(folder)
    noted = json.loads((folder / "progress.json").read_text())
    (state,) = folder.glob("state-*.bin")
    whole = (folder / "answers.bin").read_bytes()
    for payload in payloads(ran).values():
        crc = zlib.crc32(payload)
        (folder / "answers.bin").write_bytes(payload)
        write_checked(folder / "progress.json", {**noted, "bytes": len(payload), "crc": crc})
        with pytest.raises(StoreError, match="start the selection again"):
            use()
        (folder / "answers.bin").write_bytes(whole)
        state.write_bytes(payload)
        write_checked(folder / "progress.json", {**noted, "states": dict.fromkeys(noted["states"], crc)})
        with pytest.raises(StoreError, match="start the selection again"):
            use()
        assert not ran.exists()


@pytest.mark.slow
def test_right_checksums_do_not_help_a_payload_in_a_project_or_a_model(tmp_path):
    """What is behind the checksum of each binary file is read as data too, also out of a backup."""
    folder, ran = tmp_path / "one", tmp_path / "ran"
    use = project_folder(folder)
    model_folder(tmp_path / "model")
    shutil.copytree(folder, tmp_path / "whole")
    about = json.loads((folder / "features" / "about.json").read_text())
    described = json.loads((tmp_path / "model" / "model.json").read_text())
    for payload in payloads(ran).values():
        write_sealed(folder / "rounds" / "002" / "model.npz", lambda write, content=payload: write(content))
        with pytest.raises(StoreError, match=r"model\.npz cannot be read"):
            read_model(folder / "rounds" / "002")
        for place, name in enumerate(("ids.npy", "scale.npy")):
            shutil.rmtree(folder)
            shutil.copytree(tmp_path / "whole", folder)
            (folder / "features" / name).write_bytes(payload)
            sums = [*about["sums"]]
            sums[place] = zlib.crc32(payload)
            write_checked(folder / "features" / "about.json", {**about, "sums": sums})
            with pytest.raises(StoreError, match=r"the features |cannot be read"):
                use()
        (tmp_path / "model" / "model.npz").write_bytes(payload)
        digest = hashlib.sha256(payload).hexdigest()
        write_checked(tmp_path / "model" / "model.json", {**described, "arrays": digest})
        with pytest.raises(StoreError, match=r"cannot be read|finite numbers of shape"):
            SavedModel.load(tmp_path / "model")
        for name in ("project.yaml", "store.db", "rounds/002/model.npz"):
            with zipfile.ZipFile(tmp_path / "p.backup", "w") as archive:
                archive.writestr(name, payload)
                made = {"format": 1, "made": 1, "data": "x", "events": 0, "rounds": 0, "features": False}
                files = {name: [len(payload), digest]}
                archive.writestr("backup.json", json.dumps(with_checksum({**made, "files": files})))
            with pytest.raises(StoreError):
                restore(tmp_path / "p.backup", tmp_path / "restored")
        assert not ran.exists()


@pytest.mark.parametrize("kind", ["torch", "old torch", "pickle"])
def test_a_model_of_an_early_version_is_data_too(tmp_path, kind):
    """Sessions up to 0.2 kept their fit in `model.pt`."""
    use = session_folder(tmp_path / "one")
    (tmp_path / "one" / "model.bin").unlink()
    (tmp_path / "one" / "model.pt").write_bytes(payloads(tmp_path / "ran")[kind])
    with pytest.raises(StoreError, match=r"model\.pt cannot be read .*remove it to train"):
        use()
    assert not (tmp_path / "ran").exists()


def test_a_journal_of_an_early_version_is_refused_unread(tmp_path):
    """Its answers were pickles."""
    folder, ran = tmp_path / "one", tmp_path / "ran"
    use = selection_folder(folder)
    about = json.loads((folder / "about.json").read_text())
    del about["checksum"]
    (folder / "about.json").write_text(json.dumps({**about, "version": 5}))
    (folder / "answers.bin").write_bytes(payloads(ran)["pickle"])
    with pytest.raises(StoreError, match=r"another version of Labelwise .*remove .*one and start the selection again"):
        use()
    assert not ran.exists()


def test_a_project_decides_about_no_code(tmp_path):
    use = project_folder(tmp_path / "one")
    path = tmp_path / "one" / "project.yaml"
    text = path.read_text().replace("kind: table", "kind: text").replace("encoder: auto", "encoder: torch:os.getpid")
    path.write_text(re.sub(r"(?m)^checksum:.*\n", "", text))  # as who sends the folder may
    (tmp_path / "one" / "features" / "about.json").unlink()
    with pytest.raises(ArgumentError, match=r"is code, torch:os\.getpid.*name it: --encoder torch"):
        use()


@pytest.mark.parametrize(
    "path", ["subprocess.Popen", "os.mkdir", "antigravity.fly", "sklearn.utils.Bunch", "nothing.at_all"]
)
def test_a_suite_names_estimators_alone(tmp_path, path):
    from labelwise.bench.models.registry import read_model

    entry = {"name": "m", "class": path, "args": f"mkdir {tmp_path / 'ran'}", "shell": True}
    with pytest.raises(ArgumentError, match="class: expected"):
        read_model(entry, "models[0]")
    assert not (tmp_path / "ran").exists()


def _bytes_of(value):
    out = io.BytesIO()
    write_value(value, out.write)
    return out.getvalue()


def _read(data):
    return read_value(io.BytesIO(data), len(data))


def _tree(tree):
    text = json.dumps(tree).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    "tree",
    [
        {"record": ["subprocess:Popen", [["args", "x"]]]},
        {"record": ["os:system", []]},
        {"record": ["builtins:eval", []]},
        {"record": ["labelwise.io.values:_Reader", [["_left", 9]]]},
        {"named": ["builtins:tuple", [1]]},
        {"enum": ["labelwise.pool.ledger:Entry", "x"]},
        {"__class__": 1},
        {"tuple": 3},
        {"tensor": ["load", [1], "cpu"]},
        {"tensor": ["float32", [2**60], "cpu"]},
        {"tensor": ["float32", [-1], "cpu"]},
        {"tensor": ["float32", [0], "no such device"]},
        {"array": ["O", [1]]},
        {"array": ["|V8", [0]]},
        {"bytes": 10**18},
        {"again": 5},
        {"dict": [[{"dict": []}, 1]]},
        {},
        {"tuple": [], "set": []},
    ],
)
def test_a_value_that_asks_for_more_than_data_is_refused(tree):
    with pytest.raises(StoreError):
        _read(_tree(tree))


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 8, b"\xff" * 8, b"\5\0\0\0\0\0\0\0null", _tree(1)[:-1], _tree(1) + b""][:5]
)
def test_bytes_that_are_no_value_are_refused(data):
    with pytest.raises(StoreError):
        _read(data)
    deep = struct.pack("<Q", 200_000) + b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(StoreError):
        _read(deep)


@pytest.mark.parametrize("value", [print, lambda: 1, open, Path("x"), object(), Bomb("x")])
def test_what_is_not_data_is_not_written(value):
    with pytest.raises(StoreError, match="cannot be stored"):
        _bytes_of([value])


def test_a_changed_sealed_file_is_refused(tmp_path):
    from labelwise.io.checked import check_sealed

    write_sealed(tmp_path / "a", lambda write: write(b"some data"))
    assert (tmp_path / "a").read_bytes()[check_sealed(tmp_path / "a", "") :] == b"some data"
    data = (tmp_path / "a").read_bytes()
    for at in range(len(data)):
        (tmp_path / "a").write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(StoreError, match="was changed"):
            check_sealed(tmp_path / "a", "restore it")
