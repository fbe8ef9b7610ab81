"""What every signal keeps, whichever reader gives it."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from labelwise.errors import NeedError
from labelwise.pool import Pool
from labelwise.rng import Key
from labelwise.signals.model.reader import ModelReader
from labelwise.signals.read import Labelled, read
from labelwise.signals.rows import Factored
from labelwise.signals.spec import Features, Signal, stored
from labelwise.train import SklearnLearner

SIGNALS = sorted(Signal.__subclasses__(), key=lambda kind: kind.__name__)
N, D, C = 37, 6, 3


def pool(order: torch.Tensor | None = None) -> Pool:
    x = torch.randn(N, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ids = torch.arange(N) * 2 + 1
    return Pool.of(x, ids=ids) if order is None else Pool.of(x[order], ids=ids[order])


def torch_reader():
    torch.manual_seed(0)
    return ModelReader(nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, C)).double(), temperature=1.7)


def sklearn_reader():
    labels = torch.arange(N) % C
    made = make_pipeline(StandardScaler(), LogisticRegression())
    return SklearnLearner(made).fit(pool(), pool().ids, labels, classes=C, key=Key(0)).reader


def labelled() -> Labelled:
    """Labelled rows, for signals computed from them."""
    return Labelled(pool().ids[:9], torch.arange(9) % C)


def gives(reader, signal: Signal) -> bool:
    return all(isinstance(part, Features) or reader.gives(part) for part in signal.stored())


def columns(signal: Signal, reader, given: Pool, ids: torch.Tensor, batch: int) -> list[torch.Tensor]:
    """The tensors of a signal, for the rows `ids`, together."""
    parts = [rows[signal] for rows in read(reader, given, ids, (signal,), batch, labelled())]
    if isinstance(parts[0], Factored):
        return [torch.cat([part.left for part in parts]), torch.cat([part.right for part in parts])]
    return [torch.cat(parts)]


@pytest.mark.parametrize("make", [torch_reader, sklearn_reader])
@pytest.mark.parametrize("kind", SIGNALS)
def test_values_follow_the_row_alone(kind, make):
    signal, reader = kind(), make()
    if not gives(reader, signal):
        with pytest.raises(NeedError, match="does not give"):
            columns(signal, reader, pool(), pool().ids, batch=N)
        return
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    expected = columns(signal, reader, pool(), pool().ids, batch=N)
    ids = pool().ids.flip(0)
    for batch in (1, 5, N):
        found = columns(signal, reader, pool(order), ids, batch)
        for column, wanted in zip(found, expected):
            assert column.dtype == torch.float64
            torch.testing.assert_close(column.flip(0), wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", SIGNALS)
def test_a_signal_is_a_value_that_explains_itself(kind):
    assert kind() == kind()
    assert hash(kind()) == hash(kind())
    assert kind.array
    assert f"{kind.array}=" in kind.hint
    assert stored(stored((kind(),))) == stored((kind(),))
    with pytest.raises(AttributeError):
        kind().array = "x"


@pytest.mark.parametrize("make", [torch_reader, sklearn_reader])
def test_the_union_of_all_signals_is_read_in_one_sweep(make):
    reader = make()
    signals = tuple(kind() for kind in SIGNALS if gives(reader, kind()))
    (rows,) = read(reader, pool(), pool().ids, signals, N, labelled())
    for signal in signals:
        alone = columns(signal, reader, pool(), pool().ids, N)
        together = rows[signal]
        found = [together.left, together.right] if isinstance(together, Factored) else [together]
        assert all(torch.equal(a, b) for a, b in zip(found, alone))
