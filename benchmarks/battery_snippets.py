"""The programs of the battery: what a user of each library writes for each object, as strings that battery.py runs.

A program finds the case's objects by name (battery_objects.py), asks for 60 labels in batches of 20 with `answer(ids)`,
which takes the user's ids, and ends with `predicted`, the labels of the test rows by the library's own model. The first
program of a list hands the objects over as they are; a second one, where the first fails, converts them by hand.
"""

from __future__ import annotations

LABELWISE, ACTIVEML, SMALL_TEXT, MODAL = "Labelwise", "scikit-activeml", "small-text", "modAL"

_LABELWISE = """
import labelwise as lw
al = lw.Session({pool}, {model}, "{recipe}"{options})
for _ in range(3):
    ids = al.ask(20).ids
    al.tell(ids, answer(ids))
predicted = al.predict({test})
"""

_ACTIVEML = """
import numpy as np
from skactiveml.classifier import {wrapper}
from skactiveml.pool import UncertaintySampling
{before}
y = np.full(len({pool}), {missing})
clf = {wrapper}({model}, classes=classes, missing_label={label})
query = UncertaintySampling(method="margin_sampling", missing_label={label}, random_state=0)
for _ in range(3):
    ids = query.query({pool}, y, clf, batch_size=20)
    y[ids] = answer({ids})
predicted = clf.fit({pool}, y).predict({test})
"""

_ACTIVEML_TORCH = """
import numpy as np
from skactiveml.classifier import SkorchClassifier
from skactiveml.pool import UncertaintySampling
{before}
y = np.full(len(X), np.nan)
clf = SkorchClassifier({module}, classes=classes, sample_dtype={dtype}, neural_net_param_dict=options)
query = UncertaintySampling(method="margin_sampling", random_state=0)
for _ in range(3):
    ids = query.query(X, y, clf, batch_size=20)
    y[ids] = answer({ids})
predicted = clf.fit(X, y).predict(X_test)
"""

_SMALL_TEXT = """
import numpy as np
from small_text import BreakingTies, LABEL_UNLABELED, PoolBasedActiveLearner
from small_text import SklearnClassifierFactory, SklearnDataset
{before}
def dataset(X):
    return SklearnDataset(X, np.full(len(X), LABEL_UNLABELED), target_labels=np.arange(len(classes)))
factory = SklearnClassifierFactory({model}, len(classes))
learner = PoolBasedActiveLearner(factory, BreakingTies(), dataset({pool}))
ids = np.random.default_rng(0).choice(len({pool}), 20, replace=False)
learner.initialize_data(ids, np.array({labels}))
for _ in range(2):
    ids = learner.query(num_samples=20)
    learner.update(np.array({labels}))
predicted = {decode}learner.classifier.predict(dataset({test})){close}
"""

_MODAL = """
import numpy as np
from modAL.models import ActiveLearner
from modAL.uncertainty import margin_sampling
{before}
def rows(ids):
    return {rows}
labelled = np.random.default_rng(0).choice(len({pool}), 20, replace=False)
learner = ActiveLearner({model}, margin_sampling, rows(labelled), np.array(answer({first})))
for _ in range(2):
    free = np.setdiff1d(np.arange(len({pool})), labelled)
    ids = free[learner.query(rows(free), n_instances=20)[0]]
    learner.teach(rows(ids), np.array(answer({ids})))
    labelled = np.concatenate([labelled, ids])
predicted = learner.predict({test})
"""

# By hand: columns and texts become numbers before the library sees them, and the last step is the model.
_ENCODE_NUMBERS = """X = model[:-1].fit_transform(pool)
X_test = model[:-1].transform(test)"""
_ENCODE_FRAME = """X = model[:-1].fit_transform(pool).toarray()
X_test = model[:-1].transform(test).toarray()"""
_ENCODE_TEXTS = """X = model[0].fit_transform(pool).toarray()
X_test = model[0].transform(test).toarray()"""
_READ_IMAGES = """import torch
from PIL import Image
names = sorted(path.name for path in folder.iterdir())
def read(folder, names):
    images = [np.asarray(Image.open(folder / name).convert("RGB")) for name in names]
    return np.stack(images).transpose(0, 3, 1, 2).astype("float32") / 255
X, X_test = read(folder, names), read(test, sorted(path.name for path in test.iterdir()))
options = {"lr": 5e-3, "max_epochs": 200, "optimizer": torch.optim.Adam, "batch_size": 16,
           "train_split": None, "verbose": 0}"""
_PAD_TEXTS = """import torch
class Padded(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
    def forward(self, ids):
        return self.net(input_ids=ids, attention_mask=(ids != tokenizer.pad_token_id).long()).logits
both = tokenizer([*texts, *test_texts], padding=True, return_tensors="np")["input_ids"]
X, X_test = both[:len(texts)], both[len(texts):]
options = {"lr": 2e-3, "max_epochs": 40, "optimizer": torch.optim.Adam, "batch_size": 16,
           "train_split": None, "verbose": 0}"""
_SKORCH = """
from skorch import NeuralNetClassifier
net = NeuralNetClassifier({module}, criterion=torch.nn.CrossEntropyLoss, **options)"""

_TRANSFORMER_SMALL_TEXT = """
import numpy as np
from small_text import BreakingTies, LABEL_UNLABELED, PoolBasedActiveLearner
from small_text import TransformerBasedClassificationFactory, TransformerModelArguments
from small_text import TransformersDataset
make().save_pretrained("model")
tokenizer.save_pretrained("model")
def dataset(texts):
    y = np.full(len(texts), LABEL_UNLABELED)
    return TransformersDataset.from_arrays(texts, y, tokenizer, target_labels=np.arange(3),
                                           max_length=32)
options = {"device": "cpu", "num_epochs": 40, "lr": 2e-3, "mini_batch_size": 16}
arguments = TransformerModelArguments("model")
factory = TransformerBasedClassificationFactory(arguments, 3, kwargs=options)
learner = PoolBasedActiveLearner(factory, BreakingTies(), dataset(texts))
ids = np.random.default_rng(0).choice(len(texts), 20, replace=False)
learner.initialize_data(ids, np.array(answer(ids)))
for _ in range(2):
    ids = learner.query(num_samples=20)
    learner.update(np.array(answer(ids)))
predicted = learner.classifier.predict(dataset(test_texts))
"""

_REGRESSION_ACTIVEML = """
import numpy as np
from skactiveml.pool import GreedySamplingX
from skactiveml.regressor import SklearnRegressor
y = np.full(len(pool), np.nan)
reg, query = SklearnRegressor(model), GreedySamplingX(random_state=0)
for _ in range(3):
    ids = query.query(pool, y, batch_size=20)
    y[ids] = answer(ids)
predicted = reg.fit(pool, y).predict(test)
"""

_REGRESSION_MODAL = """
import numpy as np
from modAL.models import ActiveLearner
def spread(regressor, X, n_instances):
    deviation = np.std([tree.predict(X) for tree in regressor.estimator.estimators_], axis=0)
    return np.argsort(-deviation)[:n_instances]
labelled = np.random.default_rng(0).choice(len(pool), 20, replace=False)
learner = ActiveLearner(model, spread, pool[labelled], np.array(answer(labelled)))
for _ in range(2):
    free = np.setdiff1d(np.arange(len(pool)), labelled)
    ids = free[learner.query(pool[free], n_instances=20)[0]]
    learner.teach(pool[ids], np.array(answer(ids)))
    labelled = np.concatenate([labelled, ids])
predicted = learner.predict(test)
"""


def _ours(pool: str = "pool", model: str = "model", recipe: str = "margin", test: str = "test", **options: str) -> str:
    words = "".join(f", {name}={value}" for name, value in options.items())
    return _LABELWISE.format(pool=pool, model=model, recipe=recipe, test=test, options=words)


def _activeml(pool="pool", model="model", test="test", before="", ids="ids", names=False, wrapper="SklearnClassifier"):  # type: ignore[no-untyped-def]
    missing, label = ("None, dtype=object", "None") if names else ("np.nan", "np.nan")
    return _ACTIVEML.format(**locals())


def _small_text(pool="pool", model="model", test="test", before="", ids="ids", names=False):  # type: ignore[no-untyped-def]
    labels = f"[classes.index(c) for c in answer({ids})]" if names else f"answer({ids})"
    decode, close = ("np.array(classes)[", "]") if names else ("", "")
    return _SMALL_TEXT.format(**locals())


def _modal(pool="pool", model="model", test="test", before="", rows="pool[ids]", ids="ids", first="labelled"):  # type: ignore[no-untyped-def]
    return _MODAL.format(**locals())


def _counted(program: str) -> str:
    """The program for rows of a sparse matrix, which has no len()."""
    return program.replace("len(pool)", "pool.shape[0]").replace("len(X)", "X.shape[0]")


_BY_HAND = {"pool": "X", "test": "X_test"}
_NUMBERS = {**_BY_HAND, "model": "model[-1]", "before": _ENCODE_NUMBERS}
_FRAME = {**_BY_HAND, "model": "model[-1]", "before": _ENCODE_FRAME}
_TEXTS = {**_BY_HAND, "model": "model[-1]", "before": _ENCODE_TEXTS}
_DENSE = {**_BY_HAND, "before": "X, X_test = pool.toarray(), test.toarray()"}
_IMAGES = {**_BY_HAND, "model": "net", "before": _READ_IMAGES + _SKORCH.format(module="network()")}
_TOKENS = {**_BY_HAND, "model": "net", "before": _PAD_TEXTS + _SKORCH.format(module="Padded(make())")}
_NAMED = {"ids": "[names[i] for i in ids]"}
_FIRST = {"first": "[names[i] for i in labelled]"}
_INDEX = {"ids": "pool.index[ids]"}

PROGRAMS: dict[str, dict[str, list[str]]] = {
    "pipeline": {
        LABELWISE: [_ours(classes="10")],
        ACTIVEML: [_activeml()],
        SMALL_TEXT: [_small_text(), _small_text(**_NUMBERS)],
        MODAL: [_modal()],
    },
    "texts": {
        LABELWISE: [_ours(classes="classes")],
        ACTIVEML: [_activeml(names=True), _activeml(**_TEXTS, names=True)],
        SMALL_TEXT: [_small_text(names=True), _small_text(**_TEXTS, names=True)],
        MODAL: [_modal(rows="[pool[i] for i in ids]"), _modal(**_TEXTS, rows="X[ids]")],
    },
    "sparse": {
        LABELWISE: [_ours(classes="classes")],
        ACTIVEML: [_counted(_activeml(names=True)), _activeml(**_DENSE, names=True)],
        SMALL_TEXT: [_counted(_small_text(names=True)), _small_text(**_DENSE, names=True)],
        MODAL: [_counted(_modal()), _modal(**_DENSE, rows="X[ids]")],
    },
    "frame": {
        LABELWISE: [_ours(classes="classes")],
        ACTIVEML: [_activeml(names=True), _activeml(**_FRAME, names=True)],
        SMALL_TEXT: [_small_text(names=True), _small_text(**_FRAME, names=True)],
        MODAL: [_modal(rows="pool.iloc[ids]"), _modal(**_FRAME, rows="X[ids]")],
    },
    "ids": {
        LABELWISE: [_ours(classes="classes")],
        ACTIVEML: [_activeml(names=True, **_INDEX), _activeml(**_FRAME, names=True, **_INDEX)],
        SMALL_TEXT: [_small_text(names=True, **_INDEX), _small_text(**_FRAME, names=True, **_INDEX)],
        MODAL: [
            _modal(rows="pool.iloc[ids]", first="pool.index[labelled]", **_INDEX),
            _modal(**_FRAME, rows="X[ids]", first="pool.index[labelled]", **_INDEX),
        ],
    },
    "forest": {
        LABELWISE: [_ours(classes="10")],
        ACTIVEML: [_activeml()],
        SMALL_TEXT: [_small_text()],
        MODAL: [_modal()],
    },
    "boosting": {
        LABELWISE: [_ours(classes="10")],
        ACTIVEML: [_activeml()],
        SMALL_TEXT: [_small_text()],
        MODAL: [_modal()],
    },
    "regression": {
        LABELWISE: [_ours(recipe="kcenter", task='"regress"')],
        ACTIVEML: [_REGRESSION_ACTIVEML],
        SMALL_TEXT: [],
        MODAL: [_REGRESSION_MODAL],
    },
    "images": {
        LABELWISE: [
            _ours(
                pool="pool",
                model="lw.TorchLearner(network, epochs=200, lr=5e-3, batch=16)",
                recipe="margin",
                classes="10",
                test="lw.Pool.images(test, size=8)",
            )
            .replace("al = ", "pool = lw.Pool.images(folder, size=8)\nal = ")
            .replace("answer(ids)", "answer([pool.name(i) for i in ids])")
        ],
        ACTIVEML: [
            _ACTIVEML_TORCH.format(before=_READ_IMAGES, module="network()", dtype='"float32"', **_NAMED),
        ],
        SMALL_TEXT: [_small_text(**_IMAGES, **_NAMED)],
        MODAL: [_modal(**_IMAGES, **_NAMED, **_FIRST, rows="X[ids]")],
    },
    "transformer": {
        LABELWISE: [
            _ours(model="lw.TorchLearner(make, epochs=40, lr=2e-3, batch=16)", classes="3").replace(
                "al = ", "pool = lw.Pool.of(pool, collate=collate)\nal = "
            ),
        ],
        ACTIVEML: [
            _activeml(model="make()"),
            _ACTIVEML_TORCH.format(before=_PAD_TEXTS, module="Padded(make())", dtype='"int64"', ids="ids"),
        ],
        SMALL_TEXT: [_TRANSFORMER_SMALL_TEXT],
        MODAL: [_modal(**_TOKENS, rows="X[ids]")],
    },
}
ABSENT = {("regression", SMALL_TEXT): "no regression: its learners are classifiers"}


def lines(program: str) -> list[str]:
    """The lines of a program that count: all but empty ones."""
    return [line for line in program.splitlines() if line.strip()]
