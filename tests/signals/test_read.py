"""Reading: one sweep for the union of what is asked, and clear errors where it cannot be given."""

import numpy as np
import pytest
import torch
from torch import nn

from labelwise.errors import ModelError, NeedError, RowError
from labelwise.pool import Pool
from labelwise.shards import place
from labelwise.signals.model.reader import ModelReader
from labelwise.signals.read import read
from labelwise.signals.rows import Factored
from labelwise.signals.spec import Embedding, Features, HeadGrad, LabelProbs, Probs


def pool_of(n: int = 23, d: int = 5, dtype: torch.dtype = torch.float32) -> Pool:
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return Pool.of(x, ids=torch.arange(n) * 3 + 7)


class Counting(nn.Module):
    """A net that counts its forward passes."""

    def __init__(self, dtype: torch.dtype = torch.float32):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.fc = nn.Linear(5, 4, dtype=dtype), nn.Linear(4, 3, dtype=dtype)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.fc(self.body(x).tanh())


def test_one_forward_for_each_batch_whatever_is_asked():
    net, pool = Counting(), pool_of()
    rows = list(read(ModelReader(net), pool, pool.ids, (Probs(), HeadGrad(), LabelProbs(), Embedding()), batch=10))
    assert net.calls == len(rows) == 3
    assert set(rows[0].columns) == {Probs(), LabelProbs(), Embedding()}
    assert torch.equal(torch.cat([part.ids for part in rows]), pool.ids)


def test_values_do_not_depend_on_the_batch_and_follow_the_ids():
    net, pool = Counting(torch.float64), pool_of(dtype=torch.float64)
    whole = next(read(ModelReader(net), pool, pool.ids, (Probs(), Embedding())))
    ids = pool.ids.flip(0)
    parts = list(read(ModelReader(net), pool, ids, (Probs(), Embedding()), batch=4))
    for signal in (Probs(), Embedding()):
        together = torch.cat([part.tensor(signal) for part in parts])
        assert together.dtype == torch.float64
        torch.testing.assert_close(together.flip(0), whole.tensor(signal), rtol=1e-12, atol=0)


@pytest.mark.parametrize("bias", [True, False])
def test_head_grad_is_the_gradient_of_the_last_layer(bias):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3, bias=bias)).double()
    pool = pool_of(dtype=torch.float64)
    rows = next(read(ModelReader(net), pool, pool.ids, (HeadGrad(),)))
    factors = rows[HeadGrad()]
    assert isinstance(factors, Factored)
    for i, x in enumerate(pool.inputs(pool.ids)):
        logits = net(x[None])
        loss = nn.functional.cross_entropy(logits, logits.argmax(1))
        (expected,) = torch.autograd.grad(loss, net[2].weight)
        torch.testing.assert_close(torch.outer(factors.left[i], factors.right[i]), expected, rtol=1e-10, atol=1e-14)


def test_features_need_no_model_and_are_not_read_twice():
    pool = pool_of()
    rows = next(read(None, pool, pool.ids[:4], (Features(),)))
    assert torch.equal(rows.tensor(Features()), pool.inputs(pool.ids[:4]))
    reads = []

    class Source:
        kind = "counted"

        def __len__(self) -> int:
            return 6

        def inputs(self, positions):
            reads.append(len(positions))
            return torch.ones(len(positions), 5)

        def name(self, position):
            return None

        def sample(self, positions):
            return b""

    counted = Pool(Source())
    for rows in read(ModelReader(Counting()), counted, counted.ids, (Features(), Probs()), batch=3):
        assert rows.tensor(Features()).shape == (3, 5)
    assert reads == [3, 3]


def test_given_features_come_from_the_pool():
    given = np.arange(12.0, dtype=np.float32).reshape(6, 2)
    pool = Pool.of(["a", "b", "c", "d", "e", "f"], features=given)
    rows = next(read(None, pool, torch.tensor([4, 1]), (Features(),)))
    assert rows.tensor(Features()).tolist() == given[[4, 1]].tolist()


def test_a_model_signal_without_a_model_says_how_to_get_it():
    pool = pool_of()
    with pytest.raises(NeedError, match=r"Probs\(\) needs a trained model.*Label some rows.*probs="):
        read(None, pool, pool.ids, (HeadGrad(),))

    class Deaf:
        def gives(self, signal):
            return False

        def read(self, inputs, signals):
            raise AssertionError

    with pytest.raises(NeedError, match="Deaf does not give"):
        read(Deaf(), pool, pool.ids, (Probs(),))


def test_an_output_that_changes_shape_is_named():
    class Shifty(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(5, 4)

        def forward(self, x):
            return self.fc(x)[:, : 4 if len(x) == 10 else 3]

    pool = pool_of()
    stream = read(ModelReader(Shifty()), pool, pool.ids, (Probs(),), batch=10)
    with pytest.raises(ModelError, match=r"expected shape \(3, 4\).*from id 67, found \(3, 3\)"):
        list(stream)


class _Uneven:
    """A reader of the caller's own that counts the classes in two ways."""

    def gives(self, signal):
        return isinstance(signal, Probs | LabelProbs)

    def read(self, inputs, signals):
        widths = {Probs(): 4, LabelProbs(): 1}
        return {signal: torch.full((len(inputs), widths[signal]), 1 / widths[signal]) for signal in signals}


def test_probabilities_of_different_classes_are_named():
    with pytest.raises(RowError, match=r"probs 4, label_probs 1"):
        list(read(_Uneven(), Pool.of(torch.zeros(5, 3)), torch.arange(5), (Probs(), LabelProbs())))


def test_rows_of_a_half_precision_model_come_in_float32():
    net, pool = Counting(torch.bfloat16), pool_of()
    rows = next(read(ModelReader(net), pool, pool.ids, (Probs(), Embedding())))
    assert rows.tensor(Probs()).dtype == rows.tensor(Embedding()).dtype == torch.float32
    assert float((rows.tensor(Probs()).sum(1) - 1).abs().max()) < 1e-6


def test_autocast_runs_in_the_precision_asked_for():
    seen = []

    class Seeing(Counting):
        def forward(self, x):
            h = self.body(x)
            seen.append(h.dtype)
            return self.fc(h)

    pool = pool_of()
    rows = next(read(ModelReader(Seeing(), autocast=torch.bfloat16), pool, pool.ids, (Probs(), Embedding())))
    assert seen == [torch.bfloat16]
    assert rows.tensor(Embedding()).dtype == torch.float32


def test_no_rows_and_placement():
    pool, reader = pool_of(), ModelReader(Counting())
    assert list(read(reader, pool, pool.ids[:0], (Probs(), Features()))) == []
    assert list(read(None, pool, pool.ids[:0], (Features(),))) == []
    shards = place(read(reader, pool, pool.ids, (HeadGrad(),), batch=7), len(pool))
    assert torch.equal(shards.take(pool.ids[5:6]).ids, pool.ids[5:6])
