"""With the packages transformers and datasets: their models, datasets and collators, and the examples of the docs.

Models are made from small configurations; nothing is downloaded. `pytest -m huggingface` where they are installed.
"""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import labelwise as lw
from dict_batches import sentences
from labelwise.signals.model.forward import forward
from labelwise.signals.model.head import logits_of
from labelwise.signals.model.reader import ModelReader
from labelwise.signals.read import Labelled, read
from labelwise.signals.spec import Embedding, GradNorm, LossJvp, Probs

transformers = pytest.importorskip("transformers")
datasets = pytest.importorskip("datasets")
tokenizers = pytest.importorskip("tokenizers")
pytestmark = [pytest.mark.huggingface, pytest.mark.slow, pytest.mark.filterwarnings("default")]

DOCS = Path(__file__).parents[1] / "docs"
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
TEXT = {"vocab_size": 64, "max_position_embeddings": 64, **SMALL}
IMAGE = {"image_size": 32, "patch_size": 8, **SMALL}
MODELS = {
    "BertForSequenceClassification": ("BertConfig", TEXT),
    "RobertaForSequenceClassification": ("RobertaConfig", {**TEXT, "pad_token_id": 0}),
    "DistilBertForSequenceClassification": (
        "DistilBertConfig",
        {"vocab_size": 64, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32},
    ),
    "GPT2ForSequenceClassification": (
        "GPT2Config",
        {"vocab_size": 64, "n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2, "pad_token_id": 0},
    ),
    "LlamaForSequenceClassification": ("LlamaConfig", {**TEXT, "pad_token_id": 0}),
    "ViTForImageClassification": ("ViTConfig", IMAGE),
}


def make(name):
    config, options = MODELS[name]
    torch.manual_seed(0)
    return getattr(transformers, name)(getattr(transformers, config)(**options))


def tokenizer():
    words = ["[PAD]", "[UNK]", "[CLS]", *(f"w{n}" for n in range(40))]
    whole = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
    )
    whole.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=whole, pad_token="[PAD]", unk_token="[UNK]")


def dataset(**more):
    texts, labels = sentences()
    return datasets.Dataset.from_dict({"text": texts, "labels": labels, **tokenizer()(texts), **more})


@pytest.mark.parametrize("name", MODELS)
def test_signals_of_real_architectures(name):
    model = make(name).train()
    before = copy.deepcopy(model.state_dict())
    pool = lw.Pool.of(torch.randn(12, 3, 32, 32)) if "ViT" in name else lw.Pool.of(dataset(), tokenizer=tokenizer())
    labelled = Labelled(pool.ids[:4], torch.tensor([0, 1, 0, 1]))
    signals = (Probs(), Embedding(), GradNorm(), LossJvp())
    rows = next(iter(read(ModelReader(model), pool, pool.ids[:12], signals, 12, labelled)))
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    model.eval()
    for row in range(4):
        logits = logits_of(forward(model, pool.inputs([row])), None, 1)
        parts = torch.autograd.grad(
            F.cross_entropy(logits, logits.argmax(1)), list(model.parameters()), allow_unused=True
        )
        norm = sum(float(g.double().square().sum()) for g in parts if g is not None)
        assert norm == pytest.approx(float(rows.tensor(GradNorm())[row]), rel=5e-3)
        assert torch.allclose(logits.softmax(1)[0], rows.tensor(Probs())[row], atol=1e-5)


def test_every_way_to_pad_gives_the_same_rows():
    plain = lw.Pool.of(dataset(idx=list(range(60))), tokenizer=tokenizer())
    formatted = dataset()
    formatted.set_format("torch", columns=["input_ids", "attention_mask", "labels"])
    others = [
        lw.Pool.of(dataset(), collate=transformers.DataCollatorWithPadding(tokenizer())),
        lw.Pool.of(formatted, tokenizer=tokenizer()),
        lw.Pool.of(dataset()["text"][:], tokenizer=tokenizer()),
        lw.Pool.hugging(datasets.Dataset.from_dict({"text": dataset()["text"][:]}), tokenizer=tokenizer()),
    ]
    expected = plain.inputs([7, 2, 3])
    assert set(expected) == {"input_ids", "attention_mask"}
    for other in others:
        found = other.inputs([7, 2, 3])
        assert {name: column.tolist() for name, column in found.items()} == {
            name: column.tolist() for name, column in expected.items()
        }


def test_a_session_with_a_tiny_bert_learns():
    pool = lw.Pool.of(dataset(), tokenizer=tokenizer())
    learner = lw.TorchLearner(make("BertForSequenceClassification"), epochs=40, lr=5e-3)
    *_, last = lw.rounds(pool, None, learner, "typiclust+badge", k=12, n=2, seed=0)
    assert last.metrics["accuracy"] > 0.8


PAGES = [
    ("huggingface", "huggingface.md"),
    ("lightning", "huggingface.md"),
    ("huggingface", "tutorials/huggingface.md"),
]


@pytest.mark.parametrize(("package", "page"), PAGES)
def test_the_examples_of_the_pages_run(package, page, tmp_path):
    if package == "lightning":
        pytest.importorskip("lightning")
    blocks = re.findall(rf"```python {package}\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    code = "\n".join(blocks)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
