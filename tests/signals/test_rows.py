import numpy as np
import pytest
import torch

from labelwise.errors import ArgumentError, NeedError, NumericsError
from labelwise.signals.check import check_block
from labelwise.signals.rows import Factored, Rows, dot, sq_dist, sq_near, sq_norm
from labelwise.signals.spec import Embedding, Features, HeadGrad, LabelProbs, Needs, Probs, stored
from labelwise.strategies.distance.reference import badge_gradients, sq_distances

RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(4), 20)
H = RNG.normal(size=(20, 5))


def _rows(dtype: torch.dtype = torch.float64) -> Rows:
    return Rows(torch.arange(20), {Probs(): torch.tensor(P, dtype=dtype), Embedding(): torch.tensor(H, dtype=dtype)})


def test_signals_are_equal_by_value_and_stored_once():
    assert Probs() == Probs()
    assert Embedding() != Features()
    assert hash(HeadGrad()) == hash(HeadGrad(label="argmax"))
    assert stored((HeadGrad(), Embedding(), Probs(), Features())) == (Probs(), Embedding(), Features())
    assert Needs() == Needs(pool=(), labelled=())


def test_rows_give_what_was_declared_and_name_it_otherwise():
    rows = Rows(torch.arange(20), {Probs(): torch.tensor(P)})
    assert torch.equal(rows.tensor(Probs()), torch.tensor(P))
    for signal in (Embedding(), LabelProbs(), HeadGrad()):
        with pytest.raises(NeedError, match=r"have: Probs\(\)") as error:
            rows[signal]
        assert repr(signal) in str(error.value)
    with pytest.raises(NeedError, match="none"):
        Rows(torch.arange(2), {})[Probs()]
    with pytest.raises(NeedError, match="factors"):
        _rows().tensor(HeadGrad())


def test_take_keeps_ids_and_columns_together():
    part = _rows().take(torch.tensor([7, 3]))
    assert part.ids.tolist() == [7, 3]
    assert len(part) == 2
    assert np.array_equal(part.tensor(Embedding()).numpy(), H[[7, 3]])
    assert part.to(torch.device("cpu")).ids.tolist() == [7, 3]


def test_head_grad_is_the_explicit_gradient():
    rows = _rows()
    before = rows.tensor(Probs()).clone()
    g = rows[HeadGrad()]
    assert isinstance(g, Factored)
    assert len(g) == 20
    outer = (g.left[:, :, None] * g.right[:, None, :]).reshape(20, -1)
    assert np.allclose(outer.numpy(), badge_gradients(P, H), atol=1e-15)
    assert torch.equal(rows.tensor(Probs()), before)


def test_head_grad_of_tied_classes_takes_one_of_them():
    rows = Rows(torch.arange(1), {Probs(): torch.tensor([[0.4, 0.4, 0.2]]), Embedding(): torch.ones(1, 2)})
    g = rows[HeadGrad()]
    assert isinstance(g, Factored)
    assert torch.allclose(g.left.sum(1), torch.zeros(1), atol=1e-6)
    assert int((g.left < 0).sum()) == 1


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_algebra_on_factors_and_on_tensors_is_that_of_the_explicit_vectors(dtype: torch.dtype, atol: float):
    g, h = _rows(dtype)[HeadGrad()], _rows(dtype)[Embedding()]
    for column, explicit in ((g, badge_gradients(P, H)), (h, H)):
        some = column[torch.tensor([2, 9, 9])]
        exact = sq_distances(explicit, explicit[[2, 9, 9]])
        assert np.allclose(sq_norm(column).numpy(), (explicit**2).sum(1), atol=atol)
        assert np.allclose(dot(column, some).numpy(), explicit @ explicit[[2, 9, 9]].T, atol=atol)
        assert np.allclose(sq_dist(column, some).numpy(), exact, atol=atol)
        assert np.allclose(sq_near(column, sq_norm(column), some).numpy(), exact.min(1), atol=atol)
        assert sq_dist(column, some).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 3, 512, 20_000])
def test_copies_are_at_distance_zero_and_others_are_not(dtype: torch.dtype, width: int):
    gen = torch.Generator().manual_seed(width)
    x = torch.randn(6, width, generator=gen, dtype=torch.float64).abs().to(dtype)
    x[4] = x[1]
    dist = sq_dist(x, x)
    same = torch.eye(6, dtype=torch.bool)
    same[1, 4] = same[4, 1] = True
    assert bool((dist[same] == 0).all())
    assert bool((dist[~same] > 0).all())
    near = sq_near(x, sq_norm(x), x[[1]])
    assert near[[1, 4]].tolist() == [0, 0]
    assert bool((near[[0, 2, 3, 5]] > 0).all())
    assert bool((dist >= 0).all())


def test_check_names_the_first_bad_row_and_the_signal():
    ids = torch.tensor([70, 80, 90])
    x = torch.tensor([[1.0, 2.0], [3.0, torch.inf], [torch.nan, 1.0]])
    with pytest.raises(NumericsError, match=r"embedding.*row id 80 holds inf in column 1 \(2 such rows"):
        check_block(Embedding(), ids, x, torch.float32)
    check_block(Embedding(), ids, torch.full((3, 2), 3e38), torch.float32)  # finite, though its sum is not
    check_block(Embedding(), ids, torch.tensor([[3e38], [3e38], [-3e38]]), torch.float32)


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ([0.5, 0.6], "sums to 1.1"),
        ([1.2, -0.2], "smallest entry is -0.2"),
        ([2.0, -3.0], "softmax"),
        ([torch.nan, 1.0], "nan"),
        ([torch.inf, -torch.inf], "inf"),
        ([0.0, 0.0], "sums to 0"),
    ],
)
@pytest.mark.parametrize("signal", [Probs(), LabelProbs()])
def test_check_of_probabilities(row: list[float], match: str, signal: Probs | LabelProbs):
    values = torch.tensor([[0.5, 0.5], row])
    with pytest.raises(NumericsError, match=match) as error:
        check_block(signal, torch.tensor([3, 44]), values, torch.float32)
    assert "44" in str(error.value)
    assert signal.array in str(error.value)


def test_tolerance_of_sums_is_wider_for_half_precision_only():
    values = torch.tensor([[0.5, 0.505]])
    check_block(Probs(), torch.tensor([0]), values, torch.float16)
    check_block(Probs(), torch.tensor([0]), values, torch.bfloat16)
    with pytest.raises(NumericsError):
        check_block(Probs(), torch.tensor([0]), values, torch.float32)
    check_block(Probs(), torch.tensor([0]), torch.tensor([[0.5, 0.5005]]), torch.float32)
    with pytest.raises(NumericsError):
        check_block(Probs(), torch.tensor([0]), torch.tensor([[0.5, 0.52]]), torch.float16)


def test_rows_are_indexed_by_signals():
    with pytest.raises(ArgumentError, match=r"rows\[Embedding\(\)\]; found 'embedding'"):
        Rows(torch.arange(2), {Embedding(): torch.zeros(2, 3)})["embedding"]  # type: ignore[index]
