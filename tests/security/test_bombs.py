"""Small files that stand for a lot: they are refused before they fill the memory or the disk."""

import json
import zipfile

import pytest

from labelwise.bench.suite.config import read_yaml
from labelwise.errors import ArgumentError, StoreError
from labelwise.io.checked import with_checksum
from labelwise.io.yaml_text import load_yaml
from labelwise.project.backup import restore
from labelwise.project.settings import read_settings

LAUGHS = "name: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"k{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
ITSELF = "name: &a [*a, *a]\n"


@pytest.mark.parametrize("text", [LAUGHS, ITSELF])
def test_aliases_of_yaml_that_stand_for_billions_are_refused(tmp_path, text):
    (tmp_path / "project.yaml").write_text(f"version: 2\nchecksum: x\n{text}")
    with pytest.raises(StoreError, match="aliases stand for more than"):
        read_settings(tmp_path)
    with pytest.raises(ArgumentError, match="aliases stand for more than"):
        read_yaml(tmp_path / "project.yaml")


def test_aliases_of_a_suite_are_read():
    assert load_yaml("a: &a {x: 1}\nb: *a\nc: [*a, *a]") == {"a": {"x": 1}, "b": {"x": 1}, "c": [{"x": 1}, {"x": 1}]}


def test_a_backup_that_does_not_fit_on_the_disk_is_refused_before_it_is_unpacked(tmp_path):
    about = {"format": 1, "made": 1, "data": "x", "events": 0, "rounds": 0, "features": False}
    about["files"] = {"store.db": [10**17, "x"]}
    with zipfile.ZipFile(tmp_path / "bomb.backup", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("store.db", bytes(10**6))
        archive.writestr("backup.json", json.dumps(with_checksum(about)))
    with pytest.raises(StoreError, match="needs 100,000,000,000,000,000 bytes"):
        restore(tmp_path / "bomb.backup", tmp_path / "p")
    assert not (tmp_path / "p").exists()
