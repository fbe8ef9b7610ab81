"""Sketches of gradients: the two ways to compute one agree, and inner products are right on average."""

import pytest
import torch
from test_ghost_models import NETWORKS, Twice
from test_ghost_rules import Attend, inputs, wide, words
from torch import nn

from labelwise.rng import Key
from labelwise.signals.gradients.collect import GradientRequest
from labelwise.signals.gradients.pieces import Outer, Scattered, Vector
from labelwise.signals.gradients.read_gradients import RowGradients
from labelwise.signals.gradients.sketch import Tables

CPU = torch.device("cpu")


@pytest.mark.parametrize("width", [4, 64])
def test_the_sketch_of_factors_is_that_of_their_product(width):
    draw = torch.Generator().manual_seed(0)
    a, d = (torch.randn(3, 5, n, generator=draw, dtype=torch.float64) for n in (6, 7))
    tables = Tables.of(Key(1), 7, 6, width, CPU)
    whole = tables.whole(Outer(a, d).rows())
    torch.testing.assert_close(tables.outer(a, d), whole)
    torch.testing.assert_close(Outer(a, d).sketch(tables), whole)
    index = torch.randint(0, 7, (3, 5), generator=draw)
    words_piece = Scattered(index, a, 7)
    torch.testing.assert_close(words_piece.sketch(tables), tables.whole(words_piece.rows()))


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (NETWORKS["resnet18"], inputs(3, 32, 32)[:2]),
        (Twice, inputs(4)),
        (lambda: Attend(True, "self"), inputs(4, 6)),
        (lambda: nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 3)), words(3)),
        (lambda: nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.Flatten(), nn.Linear(54, 3)), inputs(4, 5, 5)),
    ],
    ids=["resnet18", "twice", "attention", "words", "groups"],
)
def test_the_sketch_of_a_model_is_that_of_its_gradients(make, x):
    """Sketch by layer, without building gradients, against the sketch of built ones."""
    torch.manual_seed(0)
    model, width = wide(make()), 32
    reader = RowGradients(model)
    found = reader.compute(x, GradientRequest(sketch=(width, 3))).sketch
    outputs = model(x).detach()
    d = outputs.softmax(1) - torch.nn.functional.one_hot(outputs.argmax(1), outputs.shape[1])
    rows_BP = reader.rows(x, lambda _: d)
    expected, start = torch.zeros(len(x), width, dtype=torch.float64), 0
    for name in reader.capture.trained:
        size = model.get_parameter(name).numel()
        expected += reader._tables((width, 3), name, CPU).whole(rows_BP[:, start : start + size])
        start += size
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


def test_inner_products_are_unbiased_with_the_stated_variance():
    draw = torch.Generator().manual_seed(0)
    g = torch.randn(2, 12, generator=draw, dtype=torch.float64)
    true = float(g[0] @ g[1])
    width, seeds = 16, 1000
    found = []
    for seed in range(seeds):
        s = Tables.of(Key(seed), 4, 3, width, CPU).whole(g)
        found.append(float(s[0] @ s[1]))
    values = torch.tensor(found, dtype=torch.float64)
    bound = (11 / width * float(g[0].square().sum() * g[1].square().sum())) ** 0.5
    assert float(values.std()) <= bound
    assert abs(float(values.mean()) - true) < 4 * float(values.std()) / seeds**0.5
    assert float(values.std()) > 0


def test_wide_sketches_tell_gradients_apart():
    torch.manual_seed(0)
    model, x = wide(NETWORKS["tutorial"]()), inputs(3, 32, 32)
    reader = RowGradients(model)
    result = reader.compute(x, GradientRequest(norm=True, sketch=(4096, 0)))
    size = result.sq_norm
    torch.testing.assert_close(result.sketch.square().sum(1), size, rtol=0.2, atol=0.0)


def test_a_vector_is_sketched_as_a_matrix_of_one_column():
    g = torch.arange(6, dtype=torch.float64)[None]
    tables = Tables.of(Key(0), 6, 1, 3, CPU)
    out = Vector(g).sketch(tables)
    expected = torch.zeros(3, dtype=torch.float64)
    for i in range(6):
        place = int((tables.bucket_O[i] + tables.bucket_I[0]) % 3)
        expected[place] += float(tables.sign_O[i] * tables.sign_I[0]) * float(g[0, i])
    torch.testing.assert_close(out[0], expected)
