import threading

import pytest
import torch

import labelwise as lw
from labelwise.errors import SourceError
from labelwise.pool.ahead import ahead, in_threads


def test_results_come_in_order_and_one_is_made_ahead():
    made = []
    used = threading.Event()

    def make(number):
        made.append(number)
        if number == 1:
            used.set()
        return number * 10

    results = ahead(make, range(5))
    assert next(results) == 0
    assert used.wait(10)  # the second is made although nobody has asked for it
    assert list(results) == [10, 20, 30, 40]
    assert made == [0, 1, 2, 3, 4]


def test_no_more_than_one_is_made_ahead():
    made = []
    results = ahead(made.append, range(100))
    next(results)
    results.close()
    assert len(made) <= 2


def test_a_failure_is_raised_where_its_result_is_due():
    def make(number):
        if number == 2:
            raise ValueError("the third")
        return number

    results = ahead(make, range(5))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="the third"):
        next(results)


def test_no_thread_is_left():
    before = threading.active_count()
    results = ahead(str, range(50))
    next(results)
    results.close()
    assert list(ahead(str, [])) == []
    in_threads(lambda number: None, 100, least=1)
    assert threading.active_count() == before


@pytest.mark.parametrize("least", [1, 1000])
def test_work_in_threads_is_done_once_for_each_number(least):
    done = [0] * 200

    def work(number):
        done[number] += 1

    in_threads(work, 200, least)
    assert done == [1] * 200


def test_the_first_of_several_failures_is_raised():
    def work(number):
        if number in (3, 150):
            raise ValueError(f"at {number}")

    with pytest.raises(ValueError, match="at 3"):
        in_threads(work, 200, least=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from PIL import Image

    folder = tmp_path_factory.mktemp("images")
    chance = torch.Generator().manual_seed(0)
    for number in range(70):
        pixels = torch.randint(256, (9, 7, 3), generator=chance, dtype=torch.uint8).numpy()
        Image.fromarray(pixels).save(folder / f"{number:03}.png")
    return folder


def test_images_read_by_threads_are_those_read_one_by_one(folder):
    pool = lw.Pool.images(folder, size=8)
    batches = list(pool.batches(size=32))
    assert [len(ids) for ids, _ in batches] == [32, 32, 6]
    for ids, images in batches:
        assert torch.equal(images, torch.cat([pool.inputs([int(id)]) for id in ids]))


def test_a_damaged_image_is_named_from_another_thread(folder, tmp_path):
    import shutil

    copy = tmp_path / "images"
    shutil.copytree(folder, copy)
    pool = lw.Pool.images(copy, size=8)
    file = copy / "050.png"
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(SourceError, match=r"050\.png"):
        list(pool.batches(size=32))


def test_a_transform_is_called_by_the_thread_that_reads(folder):
    threads = set()

    def transform(image):
        threads.add(threading.current_thread())
        return torch.zeros(3, 4, 4)

    pool = lw.Pool.images(folder, transform=transform)
    assert sum(len(ids) for ids, _ in pool.batches(size=32)) == 70
    assert threads == {threading.main_thread()}
