"""Rows that are tokenised and padded: Hugging Face datasets, texts with a tokenizer, items with a collate function."""

import pickle

import pytest
import torch

from dict_batches import FakeDataset, FakeTokenizer, sentences, tokenised
from labelwise.errors import ArgumentError, SourceError
from labelwise.pool import Pool


def test_a_tokenised_dataset_gives_padded_batches_by_name():
    data = tokenised(idx=list(range(60)), labels_too=[0] * 60)
    pool = Pool.of(data, tokenizer=FakeTokenizer())
    batch = pool.inputs([3, 0, 5])
    assert set(batch) == {"input_ids", "attention_mask"}
    lengths = [len(data["input_ids"][row]) for row in (3, 0, 5)]
    assert batch["input_ids"].shape == (3, max(lengths))
    assert batch["input_ids"].dtype == torch.int64
    assert batch["attention_mask"].sum(1).tolist() == lengths
    assert pool.inputs([0])["input_ids"].shape == (1, lengths[1])
    assert pool.labels.tolist() == data["labels"]
    assert pool.name(3) == data["text"][3]
    assert "input_ids, attention_mask" in repr(pool)
    assert pool.inputs([])["input_ids"].shape[0] == 0


def test_what_is_padded_already_needs_no_tokenizer():
    ids = [[1, 2, 0], [1, 3, 4]]
    pool = Pool.of(FakeDataset({"input_ids": ids, "token_type_ids": [[0, 0, 0], [0, 1, 1]], "label": [0, 1]}))
    assert pool.inputs([1])["token_type_ids"].tolist() == [[0, 1, 1]]
    assert pool.inputs([0, 1])["input_ids"].tolist() == ids


def test_ragged_rows_without_a_tokenizer_say_what_to_pass():
    with pytest.raises(SourceError, match=r"'input_ids' has 3 to 9 entries.*tokenizer="):
        Pool.of(tokenised()).inputs(range(60))


def test_labels_never_reach_the_inputs():
    data = tokenised(label=[1] * 60, label_ids=[1] * 60)
    assert set(Pool.of(data, tokenizer=FakeTokenizer()).inputs([0])) == {"input_ids", "attention_mask"}
    with pytest.raises(ArgumentError, match="label column 'label'"):
        Pool.hugging(data, columns=["input_ids", "label"], tokenizer=FakeTokenizer())

    def leak(rows):
        batch = FakeTokenizer().pad(rows, "pt")
        return {**batch, "labels": batch["input_ids"]}

    with pytest.raises(ArgumentError, match="collate= returns 'labels'"):
        Pool.of(data, collate=leak).inputs([0])
    numbers = FakeDataset({"a": [1, 2], "label": [0, 1], "labels": [0, 1]})
    assert Pool.of(numbers).inputs([0]).tolist() == [[1]]


def test_formats_are_taken_as_they_are_meant():
    data = tokenised(mine=[[1, 2]] * 60)
    data.set_format("torch")
    assert set(Pool.of(data, tokenizer=FakeTokenizer()).inputs([0])) == {"input_ids", "attention_mask"}
    data.set_format("torch", ["input_ids", "mine", "labels"])
    pool = Pool.of(data, collate=lambda rows: {"mine": torch.tensor([row["mine"] for row in rows])})
    assert set(pool.items([0])[0]) == {"input_ids", "mine"}
    data.set_transform(lambda batch: {"x": [torch.tensor([float(n)]) for n in batch["labels"]], "label": [0] * 2})
    pool = Pool.of(data)
    assert pool.inputs([0, 1])["x"].tolist() == [[0.0], [1.0]]
    assert pool.labels.tolist() == data["labels"]


def test_texts_are_tokenised_on_reading():
    texts, labels = sentences()
    tokenizer = FakeTokenizer()
    pool = Pool.of(texts, tokenizer=tokenizer, labels=labels)
    expected = Pool.of(tokenised(), tokenizer=tokenizer).inputs([4, 2])
    for other in (pool, Pool.of(FakeDataset({"text": texts, "label": labels}), tokenizer=tokenizer)):
        found = other.inputs([4, 2])
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert other.name(4) == texts[4]
    assert pool.fingerprint() != Pool.of(texts).fingerprint()
    again = pickle.loads(pickle.dumps(pool.to_read([4, 2], False)))
    assert torch.equal(again.inputs([4, 2])["input_ids"], expected["input_ids"])


def test_collate_of_a_torch_dataset():
    items = [({"input_ids": [1, 2]}, 0), ({"input_ids": [1, 2, 3]}, 1)]
    pool = Pool.of(Items(items), collate=lambda rows: FakeTokenizer().pad(rows, "pt"), labels="dataset")
    assert pool.inputs([0, 1])["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert pool.labels.tolist() == [0, 1]


class Items:
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, row):
        return self.items[row]


def test_text_features_are_built_in():
    data = tokenised()
    for pool in (
        Pool.of(data["text"]),
        Pool.of(data, tokenizer=FakeTokenizer()),
        Pool.of(data["text"], tokenizer=FakeTokenizer()),
    ):
        rows = pool.raw(range(60))
        assert rows.shape[0] == 60
        near = rows @ rows.T
        assert float(near[0::2, 0::2].mean()) > 3 * float(near[0::2, 1::2].mean())
    by_tokens = FakeDataset({name: data[name] for name in ("input_ids", "attention_mask")})
    assert Pool.of(by_tokens, tokenizer=FakeTokenizer()).raw([0, 1]).shape[0] == 2


def test_text_features_do_not_depend_on_the_order_of_the_rows_nor_on_the_process():
    texts, _ = sentences()
    pool = Pool.of(texts)
    turned = Pool.of(texts[::-1], ids=range(59, -1, -1))
    assert torch.equal(pool.raw([5, 9]), turned.raw([5, 9]))
    sent = pickle.loads(pickle.dumps(pool.to_read([5, 9], True)))
    assert torch.equal(sent.raw([9]), pool.raw([9]))


def test_mistakes():
    texts, _ = sentences()
    with pytest.raises(ArgumentError, match="not both"):
        Pool.of(texts, tokenizer=FakeTokenizer(), collate=list)
    with pytest.raises(ArgumentError, match="tokenizer is a tokenizer of transformers"):
        Pool.of(texts, tokenizer=str.split)
    with pytest.raises(ArgumentError, match="collate is a function"):
        Pool.of(texts, collate=3)
    with pytest.raises(ArgumentError, match="are for texts and for datasets"):
        Pool.of(torch.zeros(3, 2), collate=list)
    with pytest.raises(ArgumentError, match=r"return_tensors=.pt"):
        Pool.of(tokenised(), collate=lambda rows: {"input_ids": [row["input_ids"] for row in rows]}).inputs([0])
    with pytest.raises(ArgumentError, match="one entry for each of 2 rows"):
        Pool.of(tokenised(), collate=lambda rows: {"input_ids": torch.zeros(1, 3)}).inputs([0, 1])
    data = tokenised()
    data.set_transform(lambda batch: {"labels": batch["labels"]})
    with pytest.raises(SourceError, match="must return a dict"):
        Pool.of(data)


def test_new_rows_of_a_dataset_are_read_by_the_columns_of_the_pool():
    data = tokenised(8)
    columns = {**data.columns, "token_type_ids": [[0] * len(row) for row in data.columns["input_ids"]]}
    pool = Pool.hugging(
        FakeDataset(columns), columns=["input_ids", "attention_mask"], label="labels", tokenizer=FakeTokenizer()
    )
    rows = FakeDataset({name: values[:3] for name, values in columns.items()})
    assert set(pool.like(rows).inputs([0])) == {"input_ids", "attention_mask"}
    assert pool.like(rows).labels.tolist() == columns["labels"][:3]
    del rows.columns["labels"]
    unlabelled = pool.like(FakeDataset(rows.columns))
    assert unlabelled.labels is None
    assert torch.equal(unlabelled.inputs([2])["input_ids"], pool.inputs([2])["input_ids"])


def test_what_goes_wrong_in_a_collate_function_is_told_in_words():
    pool = Pool.of(["a", "b"], collate=lambda rows: rows.keys())
    with pytest.raises(SourceError, match=r"no batch of 1 rows, the first of type str \(AttributeError.*list of rows"):
        pool.inputs([0])
