"""The objects of the battery: what users hold, made without a download, and the score of random labels."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BUDGET = 60  # labels, in batches of 20
DRAWS = 5  # random draws of as many labels, to compare with
TOPICS = {
    "sport": "match goal team coach league player season score stadium referee",
    "food": "recipe oven sugar bread salt butter dinner kitchen taste chef",
    "travel": "flight hotel beach passport luggage train island tour airport map",
}
COMMON = "the a of and to in it was for on with that this very new old good long day people time year place story"


@dataclass(frozen=True)
class Case:
    """What one user holds.

    Attributes:
        title: for the table.
        holds: the objects, in words.
        names: the objects by the names that a snippet uses.
        truth: the label of each row, by the user's id.
        test: the labels of the test rows.
        train: trains the user's model on these ids as the user would, and predicts the test rows.
        slack: how much worse than random labels counts as a failure.
    """

    title: str
    holds: str
    names: dict[str, Any]
    truth: dict[Any, Any]
    test: np.ndarray
    train: Callable[[list[Any]], Any]
    slack: float = 0.05

    def score(self, predicted: Any) -> float:
        """Accuracy on the test rows, or R² for numbers."""
        found = np.asarray(predicted)
        if found.shape != self.test.shape:
            raise ValueError(f"predictions: expected {self.test.shape}, found {found.shape}")
        if self.test.dtype.kind == "f":
            return float(1 - np.square(found - self.test).sum() / np.square(self.test - self.test.mean()).sum())
        return float((found.astype(str) == self.test.astype(str)).mean())

    def random(self) -> float:
        """The mean score of the user's model on random labels, each class among them."""
        scores, ids = [], list(self.truth)
        for seed in range(DRAWS):
            chosen = [ids[place] for place in np.random.default_rng(seed).permutation(len(ids))[:BUDGET]]
            scores.append(self.score(self.train(chosen)))
        return float(np.mean(scores))


def _texts(rows: int, rng: np.random.Generator) -> tuple[list[str], np.ndarray]:
    """Sentences of common words with some of their topic."""
    names, common = list(TOPICS), COMMON.split()
    topics = rng.choice(len(names), rows, p=(0.6, 0.3, 0.1))
    texts = [
        " ".join(rng.permutation([*rng.choice(common, rng.integers(4, 16)), *rng.choice(TOPICS[names[t]].split(), 2)]))
        for t in topics
    ]
    return texts, np.array([names[t] for t in topics])


def _digits() -> tuple[Any, Any, Any, Any]:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    X, y = load_digits(return_X_y=True)
    return tuple(train_test_split(X / 16, y, test_size=600, random_state=0, stratify=y))


def _rows(model: Any, X: Any, y: Any, test: Any) -> Callable[[list[int]], Any]:
    """Train a clone of a scikit-learn model on rows by position."""
    from sklearn.base import clone

    return lambda ids: clone(model).fit([X[i] for i in ids] if isinstance(X, list) else X[ids], y[ids]).predict(test)


def pipeline() -> Case:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    pool, test, y, y_test = _digits()
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))
    names = {"pool": pool, "test": test, "model": model, "classes": list(range(10))}
    return Case(
        "Pipeline on numbers",
        "an array of numbers and a scikit-learn pipeline (scaler, logistic regression)",
        names,
        dict(enumerate(y.tolist())),
        y_test,
        _rows(model, pool, y, test),
    )


def trees() -> Case:
    from sklearn.ensemble import RandomForestClassifier

    pool, test, y, y_test = _digits()
    order = np.argsort(y, kind="stable")
    pool, y = pool[order], y[order]
    model = RandomForestClassifier(50, random_state=0)
    names = {"pool": pool, "test": test, "model": model, "classes": list(range(10))}
    return Case(
        "Forest, pool sorted by class",
        "an array whose rows are sorted by class, as folders of classes give them, and a random forest",
        names,
        dict(enumerate(y.tolist())),
        y_test,
        _rows(model, pool, y, test),
    )


def boosting() -> Case:
    import lightgbm

    case = trees()
    # A leaf of two rows: with the default of twenty, boosting cannot split sixty.
    model = lightgbm.LGBMClassifier(n_estimators=30, min_child_samples=2, verbose=-1, n_jobs=1, random_state=0)
    pool, test = case.names["pool"], case.names["test"]
    y = np.array(list(case.truth.values()))
    return Case(
        "Boosting, pool sorted by class",
        "the same rows and a LightGBM classifier",
        {**case.names, "model": model},
        case.truth,
        case.test,
        _rows(model, pool, y, test),
        0.08,
    )


def _frame(rows: int, seed: int) -> tuple[Any, np.ndarray]:
    """Reviews: a number, a category and a text, each with something to say about the label."""
    import pandas as pd

    rng = np.random.default_rng(seed)
    texts, topics = _texts(rows, rng)
    price = rng.normal(20, 5, rows) + 8 * (topics == "travel")
    city = np.where(rng.random(rows) < 0.5, rng.choice(["Oslo", "Rome", "Lima"], rows), topics)
    return pd.DataFrame({"price": price, "city": pd.Categorical(city), "note": texts}), topics


def _frame_model() -> Any:
    from sklearn.compose import make_column_transformer
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    columns = make_column_transformer(
        (StandardScaler(), ["price"]),
        (OneHotEncoder(handle_unknown="ignore"), ["city"]),
        (TfidfVectorizer(), "note"),
    )
    return make_pipeline(columns, LogisticRegression(max_iter=500))


def frame() -> Case:
    pool, y = _frame(600, 0)
    test, y_test = _frame(300, 1)
    model = _frame_model()
    return Case(
        "pandas frame",
        "a frame with a number, a category and a text, and a pipeline that takes columns by name",
        {"pool": pool, "test": test, "model": model, "classes": sorted(TOPICS)},
        dict(enumerate(y.tolist())),
        y_test,
        lambda ids: _cloned(model).fit(pool.iloc[ids], y[ids]).predict(test),
    )


def string_ids() -> Case:
    pool, y = _frame(600, 0)
    test, y_test = _frame(300, 1)
    pool.index = [f"review-{row * 7919 % 100003:05d}" for row in range(len(pool))]
    model, truth = _frame_model(), dict(zip(pool.index, y.tolist()))
    return Case(
        "String ids",
        "the same frame, whose index are the ids of a database",
        {"pool": pool, "test": test, "model": model, "classes": sorted(TOPICS)},
        truth,
        y_test,
        lambda ids: _cloned(model).fit(pool.loc[ids], [truth[i] for i in ids]).predict(test),
    )


def _cloned(model: Any) -> Any:
    from sklearn.base import clone

    return clone(model)


def texts() -> Case:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    pool, y = _texts(600, np.random.default_rng(0))
    test, y_test = _texts(300, np.random.default_rng(1))
    model = make_pipeline(TfidfVectorizer(), LogisticRegression(max_iter=500))
    return Case(
        "List of texts, no label yet",
        "a list of texts, TF-IDF with logistic regression, and not one label to begin with",
        {"pool": pool, "test": test, "model": model, "classes": sorted(TOPICS)},
        dict(enumerate(y.tolist())),
        y_test,
        _rows(model, pool, y, test),
    )


def sparse() -> Case:
    from sklearn.base import clone

    case = texts()
    vectoriser, model = case.names["model"]
    pool, y = vectoriser.fit_transform(case.names["pool"]), np.array(list(case.truth.values()))
    test = vectoriser.transform(case.names["test"])
    return Case(
        "Sparse matrix",
        "the TF-IDF matrix of these texts, sparse as scikit-learn gives it, and a logistic regression",
        {**case.names, "pool": pool, "test": test, "model": model},
        case.truth,
        case.test,
        lambda ids: clone(model).fit(pool[ids], y[ids]).predict(test),
    )


def regression() -> Case:
    from sklearn.datasets import make_friedman1
    from sklearn.ensemble import RandomForestRegressor

    X, y = make_friedman1(900, n_features=6, noise=0.5, random_state=0)
    pool, test = X[:600], X[600:]
    model = RandomForestRegressor(50, random_state=0)
    return Case(
        "Regression",
        "an array, labels that are numbers, and a random forest",
        {"pool": pool, "test": test, "model": model},
        dict(enumerate(y[:600].tolist())),
        y[600:],
        _rows(model, pool, y, test),
    )


def images() -> Case:
    import torch
    from PIL import Image
    from torch import nn

    X, X_test, y, y_test = _digits()
    root = Path(tempfile.mkdtemp())
    for folder, rows in (("pool", X), ("test", X_test)):
        (root / folder).mkdir()
        for row, pixels in enumerate(rows):
            Image.fromarray(np.round(pixels.reshape(8, 8) * 255).astype(np.uint8)).save(
                root / folder / f"{row:04d}.png"
            )

    def network() -> nn.Module:
        """A small network on images (3, 8, 8)."""
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))

    def train(ids: list[str]) -> Any:
        torch.manual_seed(0)
        net, rows = network(), [int(Path(i).stem) for i in ids]
        inputs = torch.tensor(X[rows], dtype=torch.float32).reshape(-1, 1, 8, 8).expand(-1, 3, -1, -1)
        _fit(net, lambda part: net(inputs[part]), torch.tensor(y[rows]), 200, 5e-3)
        with torch.no_grad():
            shown = torch.tensor(X_test, dtype=torch.float32).reshape(-1, 1, 8, 8).expand(-1, 3, -1, -1)
            return net.eval()(shown).argmax(1).numpy()

    names = {"folder": root / "pool", "test": root / "test", "network": network, "classes": list(range(10))}
    truth = {f"{row:04d}.png": int(label) for row, label in enumerate(y)}
    return Case(
        "Folder of images", "a folder of PNG files and a torch network; ids are file names", names, truth, y_test, train
    )


def transformer() -> Case:
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import BertConfig, BertForSequenceClassification, DataCollatorWithPadding, PreTrainedTokenizerFast

    words = sorted({*COMMON.split(), *" ".join(TOPICS.values()).split()})
    vocabulary = {word: place for place, word in enumerate(["[PAD]", "[UNK]", *words])}
    plain = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    plain.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]")
    pool, y = _texts(600, np.random.default_rng(0))
    test, y_test = _texts(300, np.random.default_rng(1))
    numbers = {name: place for place, name in enumerate(sorted(TOPICS))}
    y, y_test = np.array([numbers[one] for one in y]), np.array([numbers[one] for one in y_test])

    def tokenised(some: list[str]) -> Any:
        return (
            Dataset.from_dict({"text": some})
            .map(lambda row: tokenizer(row["text"]), batched=True)
            .remove_columns("text")
        )

    def make() -> Any:
        """A transformer that takes a dictionary of tensors."""
        torch.manual_seed(0)
        sizes = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 96}
        return BertForSequenceClassification(BertConfig(vocab_size=len(vocabulary), num_labels=3, **sizes))

    def train(ids: list[int]) -> Any:
        net, rows = make(), tokenizer([pool[i] for i in ids], padding=True, return_tensors="pt")
        _fit(net, lambda part: net(**{k: v[part] for k, v in rows.items()}).logits, torch.tensor(y[ids]), 40, 2e-3)
        with torch.no_grad():
            return net.eval()(**tokenizer(test, padding=True, return_tensors="pt")).logits.argmax(1).numpy()

    names = {"pool": tokenised(pool), "test": tokenised(test), "make": make, "tokenizer": tokenizer}
    names |= {"collate": DataCollatorWithPadding(tokenizer), "texts": pool, "test_texts": test, "classes": [0, 1, 2]}
    return Case(
        "Tokenised texts, transformer",
        "a `datasets.Dataset` of token ids of different lengths, its collator, and a `transformers` model",
        names,
        dict(enumerate(y.tolist())),
        y_test,
        train,
        0.1,
    )


def _fit(net: Any, forward: Callable[[Any], Any], y: Any, epochs: int, lr: float) -> None:
    """A plain training loop, as in any tutorial."""
    import torch

    steps = torch.optim.Adam(net.parameters(), lr=lr)
    net.train()
    for _ in range(epochs):
        for part in torch.randperm(len(y)).split(16):
            steps.zero_grad()
            torch.nn.functional.cross_entropy(forward(part), y[part]).backward()
            steps.step()


CASES: dict[str, Callable[[], Case]] = {
    "pipeline": pipeline,
    "texts": texts,
    "sparse": sparse,
    "frame": frame,
    "ids": string_ids,
    "forest": trees,
    "boosting": boosting,
    "regression": regression,
    "images": images,
    "transformer": transformer,
}
