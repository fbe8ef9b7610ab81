"""Pools of torch Datasets and of Hugging Face datasets."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from labelwise.errors import ArgumentError, LabelError, NeedError, RowError, SourceError
from labelwise.pool import Pool


class Items(Dataset):
    """A map-style Dataset of a list, which counts what is read."""

    def __init__(self, items):
        self.items = items
        self.read = 0

    def __len__(self):
        return len(self.items)

    def __getitem__(self, place):
        self.read += 1
        return self.items[place]


X = torch.arange(8.0).reshape(4, 2)
Y = torch.tensor([1, 0, 2, 1])


@pytest.mark.parametrize(
    "dataset",
    [
        Items(list(X)),
        Items([(x, int(y)) for x, y in zip(X, Y)]),
        Items([(x.numpy(), y) for x, y in zip(X, Y)]),
        TensorDataset(X),
        TensorDataset(X, Y),
        Subset(Items([(x, y) for x, y in zip(X, Y)]), [0, 1, 2, 3]),
    ],
)
def test_x_of_the_items_is_collated(dataset):
    pool = Pool.of(dataset, ids=[10, 20, 30, 40])
    assert pool.inputs(torch.tensor([40, 10])).tolist() == X[[3, 0]].tolist()
    assert pool.inputs([]).shape == (0, 2)
    assert pool.raw([20]).tolist() == [[2.0, 3.0]]
    assert pool.labels is None
    assert len(pool.fingerprint()) == 16


def test_making_a_pool_reads_no_item():
    dataset = Items([(x, 0) for x in X])
    pool = Pool.of(dataset)
    pool.fingerprint()
    assert dataset.read == 0
    pool.inputs([1, 2])
    assert dataset.read == 2


def test_dict_items_keep_their_label_out_of_the_inputs():
    pool = Pool.of(Items([{"x": x, "mask": i, "label": int(Y[i])} for i, x in enumerate(X)]), labels="dataset")
    batch = pool.inputs([2, 0])
    assert set(batch) == {"x", "mask"}
    assert batch["mask"].tolist() == [2, 0]
    assert pool.labels.tolist() == Y.tolist()
    assert pool.inputs([])["x"].shape == (0, 2)
    with pytest.raises(NeedError, match="features="):
        pool.raw([0])


def test_items_that_are_texts():
    pool = Pool.of(Items([("a", 0), ("b", 1)]))
    assert list(pool.inputs([1, 0])) == ["b", "a"]
    assert pool.inputs([]) == []


def test_labels_come_from_targets_without_reading_items():
    dataset = Items([(x, -1) for x in X])
    dataset.targets = Y.tolist()
    dataset.classes = ["a", "b", "c"]
    pool = Pool.of(dataset, labels="dataset")
    assert (pool.labels.tolist(), pool.classes, dataset.read) == (Y.tolist(), ("a", "b", "c"), 0)
    assert Pool.of(TensorDataset(X, Y), labels="dataset").labels.tolist() == Y.tolist()
    read = Pool.of(Items([(x, y) for x, y in zip(X, Y)]), labels="dataset")
    assert read.labels.tolist() == Y.tolist()


def test_bad_datasets():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([1])

    class Broken(Items):
        def __getitem__(self, place):
            raise KeyError("gone")

    with pytest.raises(ArgumentError, match="map-style"):
        Pool.of(Stream())
    with pytest.raises(RowError, match="empty"):
        Pool.of(Items([]))
    with pytest.raises(SourceError, match="item 2 of Broken cannot be read: KeyError"):
        Pool.of(Broken([1, 2, 3])).inputs([2])
    with pytest.raises(SourceError, match="do not make a batch"):
        Pool.of(Items([torch.zeros(2), torch.zeros(3)])).inputs([0, 1])
    with pytest.raises(SourceError, match="tuple of 3"):
        Pool.of(Items([(1, 2, 3)])).inputs([0])
    with pytest.raises(LabelError, match="item 0 of Items has no label"):
        Pool.of(Items(list(X)), labels="dataset")


class Value:
    def __init__(self, dtype):
        self.dtype = dtype


class ClassLabel:
    def __init__(self, names):
        self.names = names
        self.dtype = "int64"


class Image:
    dtype = "PIL.Image.Image"


class Hugging:
    """The part of the interface of `datasets.Dataset` that a pool uses."""

    def __init__(self, columns, features):
        self.columns = columns
        self.features = features
        self.column_names = list(columns)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        if isinstance(key, str):
            return self.columns[key]
        return {name: [values[place] for place in key] for name, values in self.columns.items()}

    def select_columns(self, names):
        return Hugging({name: self.columns[name] for name in names}, self.features)


Hugging.__module__ = "datasets.arrow_dataset"


def test_hugging_text_and_class_names():
    features = {"text": Value("string"), "title": Value("string"), "label": ClassLabel(["no", "yes"])}
    data = Hugging({"text": ["a b", "c", "d"], "title": ["A", "B", "C"], "label": [1, 0, 1]}, features)
    pool = Pool.of(data)
    assert (pool.inputs([2, 0]), pool.labels.tolist(), pool.classes) == (["d", "a b"], [1, 0, 1], ("no", "yes"))
    assert pool.name(0) == "a b"
    titles = Pool.hugging(data, text="title")
    assert titles.inputs([1]) == ["B"]
    assert titles.fingerprint() != pool.fingerprint()
    assert Pool.of(data, labels=[0, 0, 0]).labels.tolist() == [0, 0, 0]


def test_hugging_numbers():
    data = Hugging({"a": [1, 2], "b": [[0.5, 1.5], [2.5, 3.5]]}, {"a": Value("int64"), "b": [Value("float32")]})
    pool = Pool.of(data)
    assert pool.inputs([1, 0]).tolist() == [[2, 2.5, 3.5], [1, 0.5, 1.5]]
    assert pool.labels is None
    assert Pool.hugging(data, columns=["b"], label="a").inputs([0]).tolist() == [[0.5, 1.5]]
    with pytest.raises(ArgumentError, match="label column 'a'"):
        Pool.hugging(data, columns=["a"], label="a")


def test_hugging_images():
    images = pytest.importorskip("PIL.Image")
    pictures = [images.fromarray(np.full((4, 6, 3), shade, np.uint8)) for shade in (0, 255)]
    pool = Pool.of(Hugging({"image": pictures, "label": [0, 1]}, {"image": Image(), "label": ClassLabel(["a", "b"])}))
    assert pool.inputs([1, 0]).shape == (2, 3, 32, 32)
    assert pool.inputs([1, 0]).mean((1, 2, 3)).tolist() == [1, 0]


def test_hugging_mistakes():
    texts = {"one": Value("string"), "two": Value("string")}
    data = Hugging({"one": ["a"], "two": ["b"]}, texts)
    with pytest.raises(SourceError, match="which column makes a row"):
        Pool.of(data)
    with pytest.raises(SourceError, match=r"no column 'three'.*one, two"):
        Pool.hugging(data, text="three")
    with pytest.raises(SourceError, match="row 0: column 'one' holds None"):
        Pool.hugging(Hugging({"one": [None]}, texts), text="one").inputs([0])
    data.column_names = {"train": ["one"], "test": ["one"]}
    with pytest.raises(ArgumentError, match="train, test"):
        Pool.of(data)
