"""Pools of image folders."""

import logging
import os

import numpy as np
import pytest

from labelwise.errors import ArgumentError, SourceError
from labelwise.pool import Pool

images = pytest.importorskip("PIL.Image")


def save(path, value=100, size=(8, 6), mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0], len(mode)) if len(mode) > 1 else (size[1], size[0])
    images.fromarray(np.full(shape, value, np.uint8)).save(path, **options)
    return path


def test_flat_folder_in_sorted_order(tmp_path):
    for value, name in ((30, "c.png"), (10, "a.bmp"), (20, "b.GIF"), (40, "d.webp")):
        save(tmp_path / name, value)
    save(tmp_path / ".hidden.png")
    save(tmp_path / ".cache" / "x.png")
    (tmp_path / "notes.txt").write_text("not an image")
    pool = Pool.images(tmp_path, size=4)
    assert [pool.name(id) for id in pool.ids.tolist()] == ["a.bmp", "b.GIF", "c.png", "d.webp"]
    rows = pool.inputs([2, 0])
    assert rows.shape == (2, 3, 4, 4)
    assert rows.dtype.is_floating_point
    assert (rows * 255).round()[:, 0, 0, 0].tolist() == [30, 10]
    assert pool.labels is None
    assert pool.inputs([]).shape == (0, 3, 4, 4)


def test_class_folders(tmp_path):
    save(tmp_path / "dog" / "2.png")
    save(tmp_path / "cat" / "deep" / "1.jpg")
    save(tmp_path / "cat" / "3.jpeg")
    pool = Pool.images(tmp_path)
    assert (pool.labels.tolist(), pool.classes) == ([0, 0, 1], ("cat", "dog"))
    assert pool.name(1) == "cat/deep/1.jpg"
    assert Pool.images(tmp_path, labels="none").labels is None
    save(tmp_path / "loose.png")
    assert Pool.images(tmp_path).labels is None
    with pytest.raises(SourceError, match=r"loose\.png: labels=\"folders\""):
        Pool.images(tmp_path, labels="folders")


def test_a_skipped_image_leaves_a_gap_and_keeps_the_classes(tmp_path, caplog):
    save(tmp_path / "a" / "1.png", 10)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "2.png").write_bytes(b"not an image")
    whole = save(tmp_path / "c" / "3.jpg", 30, size=(64, 64), quality=95).read_bytes()
    (tmp_path / "c" / "3.jpg").write_bytes(whole[: len(whole) // 2])  # the header is whole, the rest is missing
    save(tmp_path / "d" / "4.png", 40)
    with pytest.raises(SourceError, match=r"b.2\.png: not an image.*on_error=\"skip\""):
        Pool.images(tmp_path)
    with caplog.at_level(logging.WARNING):
        pool = Pool.images(tmp_path, on_error="skip", features=np.eye(2))
    assert "2 rows skipped" in caplog.text
    assert pool.ids.tolist() == [0, 3]
    assert (pool.labels.tolist(), pool.classes) == ([0, 3], ("a", "b", "c", "d"))
    assert (pool.inputs([3, 0]) * 255).round()[:, 0, 0, 0].tolist() == [40, 10]
    assert [note.split(":")[0].split(os.sep)[-1] for note in pool.skipped] == ["2.png", "3.jpg"]
    (tmp_path / "b" / "2.png").unlink()
    with pytest.raises(SourceError, match=r"3\.jpg: the image cannot be read"):
        Pool.images(tmp_path).inputs([1])


def test_what_a_person_sees_is_what_is_read(tmp_path):
    save(tmp_path / "a.png", 0, mode="RGBA")  # black, wholly transparent: white on a page
    grey = np.full((4, 4), 32896, np.uint16)
    images.fromarray(grey).save(tmp_path / "b.png")  # 16 bits, 32896 / 257 = 128
    turned = np.zeros((4, 8, 3), np.uint8)
    turned[:, :4] = 255
    exif = images.Exif()
    exif[0x0112] = 6  # turn a quarter to the right: the left half becomes the top
    images.fromarray(turned).save(tmp_path / "c.jpg", exif=exif, quality=100, subsampling=0)
    pool = Pool.images(tmp_path, size=(8, 4))
    rows = pool.inputs(pool.ids)
    assert rows.shape == (3, 3, 8, 4)
    assert rows[0].min() == 1
    assert (rows[1] * 255).round().unique().tolist() == [128]
    assert rows[2, :, :3].min() > 0.8
    assert rows[2, :, 5:].max() < 0.2


def test_fingerprint_sees_names_not_the_place_of_the_folder(tmp_path):
    save(tmp_path / "one" / "a.png")
    first = Pool.images(tmp_path / "one").fingerprint()
    (tmp_path / "one").rename(tmp_path / "two")
    assert Pool.images(tmp_path / "two").fingerprint() == first
    (tmp_path / "two" / "a.png").rename(tmp_path / "two" / "b.png")
    assert Pool.images(tmp_path / "two").fingerprint() != first


def test_fingerprint_sees_the_size_of_every_file(tmp_path):
    for number in range(40):
        save(tmp_path / f"{number:02}.png")
    first = Pool.images(tmp_path).fingerprint()
    assert Pool.images(tmp_path).fingerprint() == first
    with (tmp_path / "17.png").open("ab") as file:
        file.write(b"more")
    assert Pool.images(tmp_path).fingerprint() != first


def test_a_link_in_a_circle_ends(tmp_path):
    save(tmp_path / "a" / "1.png")
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a", target_is_directory=True)
    assert len(Pool.images(tmp_path)) == 1


def test_mistakes(tmp_path):
    with pytest.raises(SourceError, match="no images there"):
        Pool.images(tmp_path)
    with pytest.raises(SourceError, match="nothing of that name"):
        Pool.images(tmp_path / "gone")
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(SourceError, match="a file is there"):
        Pool.images(tmp_path / "a.png")
    with pytest.raises(SourceError, match=r"none of the 1 rows can be read.*a\.png"):
        Pool.images(tmp_path, on_error="skip")
    with pytest.raises(ArgumentError, match='"stop" or "skip"'):
        Pool.images(tmp_path, on_error="ignore")
    with pytest.raises(ArgumentError, match="at least 1"):
        Pool.images(tmp_path, size=0)
    for size in (1.5, (4, 1.5), (4, 4, 4), None):
        with pytest.raises(ArgumentError, match="size is a number of pixels"):
            Pool.images(tmp_path, size=size)
    with pytest.raises(ArgumentError, match='"auto"'):
        Pool.images(tmp_path, labels="yes")
