"""Models that take tokenised rows by name and return an object with logits: signals, training, selections."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import labelwise as lw
from dict_batches import FakeTokenizer, TinyDecoder, TinyEncoder, sentences, tokenised
from labelwise.errors import ModelError
from labelwise.signals.model.reader import ModelReader
from labelwise.signals.read import Labelled, read
from labelwise.signals.spec import Embedding, GradNorm, GradSketch, HeadGrad, LogProbs, LossJvp, Probs


def pool_of(n=60):
    return lw.Pool.of(tokenised(n), tokenizer=FakeTokenizer())


def columns(model, pool, signals, batch):
    labelled = Labelled(pool.ids[:8], pool.labels[:8])
    found = list(read(ModelReader(model), pool, pool.ids, signals, batch, labelled))
    return {signal: torch.cat([rows.tensor(signal) for rows in found]) for signal in signals}


def gradients(model, pool, ids, labels):
    """The gradient of each row's loss by all parameters, row by row."""
    rows = []
    for id, label in zip(ids, labels):
        logits = model(**pool.inputs([id])).logits
        target = logits.argmax(1) if label is None else torch.tensor([label])
        parts = torch.autograd.grad(F.cross_entropy(logits, target), list(model.parameters()), allow_unused=True)
        flat = [torch.zeros_like(p) if g is None else g for p, g in zip(model.parameters(), parts)]
        rows.append(torch.cat([g.flatten() for g in flat]))
    return torch.stack(rows)


@pytest.mark.parametrize("make", [TinyEncoder, TinyDecoder])
def test_signals_of_ragged_rows_equal_those_of_single_rows_and_leave_the_model_alone(make):
    torch.manual_seed(0)
    model, pool = make().double().train(), pool_of(24)
    before = copy.deepcopy(model.state_dict())
    signals = (Probs(), Embedding(), GradNorm(), LossJvp(), GradSketch(16, 0))
    found = columns(model, pool, signals, 7)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(type(p) is nn.Parameter and p.grad is None for p in model.parameters())
    model.eval()
    one_by_one = torch.cat([model(**pool.inputs([id])).logits for id in pool.ids]).softmax(1)
    assert torch.allclose(found[Probs()], one_by_one)
    head = model.head if make is TinyEncoder else model.score
    bias = 0 if head.bias is None else head.bias
    assert torch.allclose((found[Embedding()] @ head.weight.T + bias).softmax(1), one_by_one)
    g_NP = gradients(model, pool, range(24), [None] * 24)
    along = gradients(model, pool, range(8), pool.labels[:8].tolist()).sum(0)
    assert torch.allclose(found[GradNorm()], g_NP.square().sum(1))
    assert torch.allclose(found[LossJvp()], g_NP @ along, atol=1e-9)


def test_last_layer_gradients_of_a_decoder():
    torch.manual_seed(0)
    model, pool = TinyDecoder(), pool_of(10)
    rows = next(iter(read(ModelReader(model), pool, pool.ids, (HeadGrad(),), 10)))
    left, right = rows[HeadGrad()].left, rows[HeadGrad()].right
    for row in range(10):
        logits = model(**pool.inputs([row])).logits
        (g,) = torch.autograd.grad(F.cross_entropy(logits, logits.argmax(1)), model.score.weight)
        assert torch.allclose(torch.outer(left[row], right[row]), g, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["badge", "bait", "dynamical", "ally", "typiclust+sabal-greedy", "bald"])
def test_sessions_on_tokenised_rows(recipe):
    _, labels = sentences()
    learner = lw.TorchLearner(TinyEncoder, epochs=8, lr=0.02)
    al = lw.Session(pool_of(), lw.laplace(learner, draws=8) if recipe == "bald" else learner, recipe, seed=0)
    for k in (12, 4):
        picks = al.ask(k)
        al.tell(picks.ids, [labels[id] for id in picks.ids])
    assert len(set(al.labelled.tolist())) == 16
    assert al.predict_proba(pool_of(5)).shape == (5, 2)


def test_dropout_draws_of_ragged_rows_do_not_depend_on_the_batch():
    torch.manual_seed(0)
    pool = pool_of(20)
    learner = lw.TorchLearner(TinyEncoder(dropout=0.5), restart="given", epochs=2)
    fit = learner.fit(pool, pool.ids[:10], pool.labels[:10], classes=2, key=lw.Key(0))
    whole, parts = (
        torch.cat([rows.tensor(LogProbs(4)) for rows in read(fit.reader, pool, pool.ids, (LogProbs(4),), size)])
        for size in (20, 3)
    )
    assert torch.allclose(whole, parts, atol=1e-5)
    assert float(whole.std(1).max()) > 0.01


@pytest.mark.slow
def test_training_learns_and_pads_each_batch_by_itself():
    seen = set()

    class Widths(TinyEncoder):
        def forward(self, input_ids=None, attention_mask=None):
            if self.training:
                seen.add(input_ids.shape[1])
            return super().forward(input_ids, attention_mask)

    tokenizer = FakeTokenizer()
    texts, labels = sentences()
    pool = lw.Pool.of(texts, tokenizer=tokenizer)
    learner = lw.TorchLearner(Widths, epochs=30, lr=0.02, batch=4)
    fit = learner.fit(pool, pool.ids, torch.tensor(labels), classes=2, key=lw.Key(0))
    assert (fit.predict(pool) == np.array(labels)).mean() > 0.9
    assert len(seen) > 1
    assert tokenizer.calls < 10  # labelled texts are tokenised once, not in every epoch


def test_new_texts_are_tokenised_as_those_of_the_pool():
    texts, labels = sentences()
    pool = lw.Pool.of(texts, tokenizer=FakeTokenizer())
    al = lw.Session(pool, lw.TorchLearner(TinyEncoder, epochs=2), "margin", classes=2)
    al.tell(range(8), labels[:8])
    assert np.array_equal(al.predict_proba(texts[20:24]), al.predict_proba(ids=range(20, 24)))
    records = list(lw.rounds(pool, labels, al.learner, "margin", k=5, n=1, test=(texts[:10], labels[:10])))
    assert len(records) == 2


def test_models_that_cannot_take_the_rows_are_refused_with_what_to_do():
    pool = pool_of()
    learner = lw.TorchLearner(lambda: nn.Linear(9, 2))
    with pytest.raises(
        ModelError, match=r"dicts of input_ids, attention_mask, which Linear cannot be called with.*forward"
    ):
        learner.fit(pool, pool.ids[:4], pool.labels[:4], classes=2, key=lw.Key(0))

    class Half(nn.Module):
        def forward(self, input_ids, mask=None):
            return input_ids

    with pytest.raises(ModelError, match=r"does not take attention_mask; it takes input_ids, mask.*columns="):
        next(iter(read(ModelReader(Half()), pool, pool.ids, (Probs(),))))
    from sklearn.linear_model import LogisticRegression

    al = lw.Session(pool, LogisticRegression(), "margin", seed=0)
    al.tell([0, 1], [0, 1])
    with pytest.raises(ModelError, match="takes rows of numbers or texts"):
        al.fit()


def test_weights_of_a_transformers_model_are_where_each_round_starts():
    class Pretrained(TinyEncoder):
        pass

    Pretrained.__module__ = "transformers.models.tiny"
    assert lw.TorchLearner(Pretrained()).restart == "given"
    assert lw.TorchLearner(Pretrained(), restart=True).restart is True
    assert lw.TorchLearner(TinyEncoder()).restart is True


def test_a_bias_cached_in_eval_mode_has_its_gradient_and_leaves_no_trace():
    class Caching(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(4, 3))
            self.last = nn.Linear(3, 2)
            self.cache = {}

        def forward(self, x):
            if not self.training and "bias" not in self.cache:
                self.cache["bias"] = self.table[[0, 2]].sum(0)
            return self.last(torch.tanh(x + self.cache.get("bias", self.table[[0, 2]].sum(0))))

    torch.manual_seed(0)
    model, pool = Caching(), lw.Pool.of(torch.randn(5, 3))
    rows = next(iter(read(ModelReader(model), pool, pool.ids, (GradNorm(),))))
    assert model.cache == {}
    for row in range(5):
        model.cache.clear()
        model.train()
        logits = model(pool.inputs([row]))
        parts = torch.autograd.grad(F.cross_entropy(logits, logits.argmax(1)), list(model.parameters()))
        assert sum(float(g.square().sum()) for g in parts) == pytest.approx(
            float(rows.tensor(GradNorm())[row]), rel=1e-4
        )


class Picky(nn.Linear):
    """Refuses images of another size, as the vision models of transformers do."""

    def __init__(self):
        super().__init__(3, 2)

    def forward(self, pixel_values):
        raise ValueError("Input image size (8*8) doesn't match model (16*16).")


@pytest.mark.parametrize(
    ("rows", "model", "text"),
    [
        (["a b", "c d"], nn.Linear(2, 2), r"the rows are texts, which Linear .*TypeError.*tokenizer=.*collate="),
        (["a b", "c d"], TinyEncoder(), r"the rows are texts, which TinyEncoder .*tokenizer="),
        (np.zeros((2, 2), np.uint8), nn.Linear(2, 2), r"the rows are uint8, which Linear .*astype\('float32'\)"),
        (np.zeros((2, 2), bool), nn.Linear(2, 2), "the rows are bool, which Linear"),
        (np.zeros((2, 3, 4, 4), np.uint8), nn.Conv2d(3, 2, 4), "the rows are uint8, which Conv2d .*divided by 255"),
        (np.zeros((2, 3), np.float32), nn.Linear(2, 2), r"rows of shape \(3,\)"),
        (np.zeros((2, 3, 8, 8), np.float32), Picky(), r"rows of shape \(3, 8, 8\).*Pool\.images\(size="),
    ],
)
def test_rows_that_a_model_cannot_be_called_with_are_refused_in_words(rows, model, text):
    pool = lw.Pool.of(rows)
    with pytest.raises(ModelError, match=text):
        next(iter(read(ModelReader(model), pool, pool.ids, (Probs(),))))
    learner = lw.TorchLearner(model, epochs=1, restart="given")
    session = lw.Session(pool, learner, "margin", classes=2)
    session.tell([0, 1], [0, 1])
    with pytest.raises(ModelError, match=text):
        session.fit()
