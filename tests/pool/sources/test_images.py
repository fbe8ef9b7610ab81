"""Pools of image folders."""

import logging
import os
import pickle

import numpy as np
import pytest

from labelwise.errors import ArgumentError, RowError, SourceError
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
    for size in (1.5, (4, 1.5), (4, 4, 4), "4"):
        with pytest.raises(ArgumentError, match="size is a number of pixels"):
            Pool.images(tmp_path, size=size)
    with pytest.raises(ArgumentError, match='"auto"'):
        Pool.images(tmp_path, labels="yes")


def test_a_list_of_paths_in_its_order(tmp_path):
    paths = [save(tmp_path / "dog" / "2.png", 20), save(tmp_path / "cat" / "1.png", 10), save(tmp_path / "x.png", 30)]
    pool = Pool.images([paths[2], str(paths[0]), paths[1]], size=4)
    assert (pool.inputs([0, 1, 2])[:, 0, 0, 0] * 255).round().tolist() == [30, 20, 10]
    assert (pool.labels, pool.name(2)) == (None, str(paths[1]))
    assert Pool.images(paths[:2], labels="folders").classes == ("cat", "dog")
    named = Pool.images(paths[:2], labels=["big", "small"])
    assert (named.labels.tolist(), named.classes) == ([0, 1], ("big", "small"))
    assert Pool.images(paths[:2], labels=np.array([1, 0]), classes=["a", "b"]).labels.tolist() == [1, 0]
    (tmp_path / "bad.png").write_bytes(b"no")
    skipped = Pool.images([tmp_path / "bad.png", *paths[:2]], labels=[7, 8, 9], on_error="skip")
    assert (skipped.ids.tolist(), skipped.labels.tolist()) == ([1, 2], [8, 9])
    with pytest.raises(ArgumentError, match="the list is empty"):
        Pool.images([])
    with pytest.raises(ArgumentError, match="the list holds 3"):
        Pool.images([3])
    with pytest.raises(RowError, match="one for each of 2 images was expected, 1"):
        Pool.images(paths[:2], labels=[0])


def as_array(image):
    return np.asarray(image, np.float32).transpose(2, 0, 1) / 127.5 - 1


def test_a_transform_decides_about_size_and_scale(tmp_path):
    for number, value in enumerate((0, 255)):
        save(tmp_path / f"{number}.png", value, size=(8, 6))
    pool = Pool.images(tmp_path, transform=as_array)
    assert pool.inputs([1, 0]).shape == (2, 3, 6, 8)
    assert pool.inputs([1, 0]).mean((1, 2, 3)).tolist() == [1, -1]
    assert pool.inputs([]).shape == (0, 3, 6, 8)
    sized = Pool.images(tmp_path, transform=as_array, size=(4, 5))
    assert sized.inputs([0]).shape == (1, 3, 4, 5)
    assert len({pool.fingerprint(), sized.fingerprint(), Pool.images(tmp_path).fingerprint()}) == 3
    again = pickle.loads(pickle.dumps(pool.to_read([1], False)))
    assert again.inputs([1]).equal(pool.inputs([1]))

    def processed(image):  # as an image processor of transformers
        return {"pixel_values": [as_array(image)]}

    assert Pool.images(tmp_path, transform=processed).inputs([1, 0]).equal(pool.inputs([1, 0]))


def test_a_transform_may_return_memory_that_cannot_be_written(tmp_path):
    for name in ("a", "b"):
        images.new("RGB", (3, 2), (1, 2, 3)).save(tmp_path / f"{name}.png")
    pool = Pool.images(tmp_path, transform=lambda image: np.asarray(image))  # without a warning of torch
    assert pool.inputs([0]).tolist() == [[[[1, 2, 3]] * 3] * 2]


def test_a_transform_is_tried_before_it_is_used(tmp_path):
    save(tmp_path / "a.png", size=(8, 6))
    generator = np.random.default_rng(0)
    with pytest.raises(ArgumentError, match="something else each time"):
        Pool.images(tmp_path, transform=lambda image: as_array(image) + generator.normal())
    with pytest.raises(ArgumentError, match=r"a\.png: transform= failed: ZeroDivisionError"):
        Pool.images(tmp_path, transform=lambda image: 1 / 0)
    with pytest.raises(ArgumentError, match="transform is a function"):
        Pool.images(tmp_path, transform=3)
    save(tmp_path / "b.png", size=(5, 6))
    with pytest.raises(ArgumentError, match=r"b\.png: transform= returns shape \(3, 6, 5\), and \(3, 6, 8\)"):
        Pool.images(tmp_path, transform=as_array).inputs([0, 1])


@pytest.mark.parametrize("more", [{"size": (4, 5)}, {"transform": as_array}])
def test_new_images_are_read_as_those_of_the_pool(tmp_path, more):
    for number in range(4):
        save(tmp_path / f"{number}.png", 60 * number, size=(8, 6))
    pool, paths = Pool.images(tmp_path, **more), [tmp_path / "3.png", str(tmp_path / "1.png")]
    assert pool.like(paths).inputs([0, 1]).equal(pool.inputs([3, 1]))
    assert pool.like(tmp_path).inputs([0, 1]).equal(pool.inputs([0, 1]))
    grown = pool.extended(paths)
    assert grown.inputs([4, 5]).equal(pool.inputs([3, 1]))
    assert grown.like(paths).inputs([0]).equal(pool.inputs([3]))
    save(tmp_path / "other.png", size=(9, 9))
    if "transform" in more:
        with pytest.raises(ArgumentError, match=r"returns shape \(3, 9, 9\), and \(3, 6, 8\)"):
            pool.like([tmp_path / "other.png"])
