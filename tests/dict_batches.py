"""What models and datasets of the Hugging Face packages look like from outside, in plain torch."""

from collections import OrderedDict

import numpy as np
import torch
from torch import nn

PAD, CLS = 0, 1


class Value:
    def __init__(self, dtype):
        self.dtype = dtype


class ListOf:
    def __init__(self, dtype):
        self.feature = Value(dtype)


class FakeDataset:
    """The part of the interface of `datasets.Dataset` that a pool uses."""

    def __init__(self, columns, features=None, form=None):
        self.columns = columns
        self.features = features or {name: _feature(values[0]) for name, values in columns.items()}
        self.form = form or {"type": None, "columns": list(columns)}

    @property
    def column_names(self):
        return list(self.columns)

    @property
    def format(self):
        return dict(self.form)

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        if isinstance(key, str):
            return self.columns[key]
        found = {name: [values[row] for row in key] for name, values in self.columns.items()}
        if self.form["type"] == "custom":
            return self.form["transform"](found)
        if self.form["type"] == "torch":
            found = {name: found[name] for name in self.form["columns"]}
            return {name: [torch.tensor(value) for value in values] for name, values in found.items()}
        return found

    def set_format(self, kind, columns=None):
        self.form = {"type": kind, "columns": columns or self.column_names}

    def set_transform(self, transform):
        self.form = {"type": "custom", "columns": self.column_names, "transform": transform}

    def with_format(self, kind):
        return FakeDataset(self.columns, self.features, {"type": kind, "columns": self.column_names})

    def select_columns(self, names):
        return FakeDataset({name: self.columns[name] for name in names}, self.features)


FakeDataset.__module__ = "datasets.arrow_dataset"


def _feature(value):
    if isinstance(value, list):
        return ListOf("int64")
    return Value("string" if isinstance(value, str) else "int64")


class FakeTokenizer:
    """Words w0, w1 ... are their numbers plus 2; called and padding as a tokenizer of transformers does."""

    model_max_length = 16

    def __init__(self):
        self.calls = 0

    def __call__(self, texts, truncation=False):
        self.calls += 1
        ids = [[CLS, *(2 + int(word[1:]) for word in text.split())] for text in texts]
        ids = [row[: self.model_max_length] for row in ids] if truncation else ids
        return {"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids]}

    def pad(self, rows, return_tensors=None):
        assert return_tensors == "pt"
        longest = max(len(row["input_ids"]) for row in rows)
        names = dict.fromkeys(("input_ids", "attention_mask", *rows[0]))
        filled = [{"attention_mask": [1] * len(row["input_ids"]), **row} for row in rows]
        return {
            name: torch.tensor([[*row[name], *[PAD] * (longest - len(row[name]))] for row in filled]) for name in names
        }


class Output(OrderedDict):
    """A ModelOutput: a mapping whose values are attributes too."""

    def __getattr__(self, name):
        return self[name]


class TinyEncoder(nn.Module):
    """Embeds tokens, mixes them by attention that sees the mask, and pools: as a BERT does, in 2,000 parameters."""

    def __init__(self, classes=2, width=8, dropout=0.1):
        super().__init__()
        self.embed = nn.Embedding(40, width)
        self.types = nn.Embedding(2, width)
        self.attend = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(width, classes)

    def forward(self, input_ids=None, attention_mask=None, token_type_ids=None, labels=None):
        assert labels is None, "labels reached the model"
        h = self.embed(input_ids)
        if token_type_ids is not None:
            h = h + self.types(token_type_ids)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        h = self.norm(h + self.attend(h, h, h, key_padding_mask=mask == 0, need_weights=False)[0])
        pooled = (h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return Output(logits=self.head(self.drop(pooled)), hidden_states=(h,))


class TinyDecoder(nn.Module):
    """Scores every token, and returns the score of the last one that is not padding."""

    def __init__(self, classes=2, width=8):
        super().__init__()
        self.embed = nn.Embedding(40, width)
        self.mix = nn.Linear(width, width)
        self.score = nn.Linear(width, classes, bias=False)

    def forward(self, input_ids, attention_mask):
        h = torch.tanh(self.mix(self.embed(input_ids).cumsum(1)))
        last = attention_mask.sum(1) - 1
        return Output(logits=self.score(h)[torch.arange(len(h)), last])


def sentences(n=60, seed=0):
    """Texts of two classes, and the classes."""
    rng = np.random.default_rng(seed)
    labels = (np.arange(n) % 2).tolist()
    return [
        " ".join(f"w{rng.integers(0, 15) + 15 * label}" for _ in range(rng.integers(2, 9))) for label in labels
    ], labels


def tokenised(n=60, **more):
    """A tokenised dataset with ragged rows, a text column, labels and further columns."""
    texts, labels = sentences(n)
    found = FakeTokenizer()(texts)
    return FakeDataset({"text": texts, "labels": labels, **found, **more})
