"""Sparse matrices as pools: rows, features, new rows, and sessions on them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

import labelwise as lw
from labelwise.errors import ArgumentError, ModelError
from labelwise.pool import Pool
from labelwise.signals.spec import Embedding, Probs

DRAW = np.random.default_rng(0)
LABELS = DRAW.integers(0, 2, 90)
WORDS = [f"w{word}" for word in range(60)]
MATRIX = TfidfVectorizer().fit_transform(
    " ".join(DRAW.choice(WORDS[20 * label : 20 * label + 40], 8)) for label in LABELS
)


WIDE = sp.hstack([MATRIX, sp.csr_matrix((90, 1000))]).tocsr()


def test_rows_are_sparse_for_estimators_and_dense_for_others() -> None:
    pool = Pool.of(MATRIX)
    assert repr(pool) == "Pool(90 rows, sparse)"
    assert sp.issparse(pool.inputs([3, 1], frame=True))
    np.testing.assert_array_equal(pool.inputs([3, 1]).numpy(), MATRIX[[3, 1]].toarray())
    assert torch.equal(pool.raw([3, 1]), pool.inputs([3, 1]))


@pytest.mark.parametrize("form", [sp.csc_matrix, sp.coo_matrix, sp.csr_array, sp.lil_matrix, pickle.dumps])
def test_the_pool_is_the_same_in_every_format(form) -> None:
    made = pickle.loads(form(Pool.of(MATRIX))) if form is pickle.dumps else Pool.of(form(MATRIX))
    assert made.fingerprint() == Pool.of(MATRIX).fingerprint()


def test_the_fingerprint_is_of_the_values_and_the_matrix_stays_as_it_is() -> None:
    twice = sp.csr_matrix((np.array([1.0, 2.0, 0.0]), np.array([1, 1, 0]), np.array([0, 2, 3])), (2, 3))
    assert Pool.of(twice).fingerprint() == Pool.of(sp.csr_matrix([[0.0, 3, 0], [0, 0, 0]])).fingerprint()
    assert twice.nnz == 3
    changed = MATRIX.copy()
    changed.data[5] += 1
    assert Pool.of(changed).fingerprint() != Pool.of(MATRIX).fingerprint()


def test_features_of_wide_rows_keep_their_distances_in_any_order() -> None:
    """60 rows of at most 60 columns with numbers: 200 directions hold all of them."""
    pool, order = Pool.of(WIDE[:60]), np.random.default_rng(1).permutation(60)
    rows, dense = pool.raw(range(60)), torch.from_numpy(MATRIX[:60].toarray()).float()
    torch.testing.assert_close(torch.cdist(rows, rows), torch.cdist(dense, dense), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(Pool.of(WIDE[:60][order], ids=order).raw(range(60)), rows, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(pool.to_read([4, 2], features=True).raw([4, 2]), rows[[4, 2]], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("recipe", ["typiclust+margin", "badge"])
def test_sessions_choose_as_on_the_dense_rows(recipe) -> None:
    def labelled(pool):
        al = lw.Session(pool, LogisticRegression(), recipe, classes=2, seed=0)
        for _ in range(3):
            picks = al.ask(8)
            al.tell(picks.ids, LABELS[picks.ids])
        return al

    on_sparse, on_dense = labelled(MATRIX), labelled(MATRIX.toarray())
    assert on_sparse.labelled.tolist() == on_dense.labelled.tolist()
    assert sp.issparse(on_sparse.pool.inputs([0], frame=True))
    assert on_sparse.model.n_features_in_ == MATRIX.shape[1]
    np.testing.assert_allclose(on_sparse.predict_proba(MATRIX), on_dense.predict_proba(), atol=1e-6)
    np.testing.assert_allclose(on_sparse.predict_proba(MATRIX.toarray()), on_dense.predict_proba(), atol=1e-6)
    columns = on_sparse.fit().reader.read(MATRIX[:4], (Probs(), Embedding()))
    assert columns[Embedding()].dtype == torch.float64


def test_a_torch_model_reads_dense_rows() -> None:
    al = lw.Session(WIDE, lw.TorchLearner(torch.nn.Linear(WIDE.shape[1], 2), epochs=2), "badge", classes=2)
    al.tell(range(20), LABELS[:20])
    assert len(set(al.ask(5).ids.tolist())) == 5


def test_new_rows_join_a_stored_session(tmp_path) -> None:
    al = lw.Session(MATRIX[:70], LogisticRegression(), "margin", classes=2, folder=tmp_path / "s")
    al.tell(range(20), LABELS[:20])
    assert al.add_rows(MATRIX[70:]).tolist() == list(range(70, 90))
    whole = lw.Session(MATRIX, LogisticRegression(), "margin", classes=2, folder=tmp_path / "s", resume=True)
    assert whole.ask(5).ids.tolist() == al.ask(5).ids.tolist()
    with pytest.raises(ArgumentError, match="have 60 columns; found 3"):
        al.add_rows(MATRIX[:, :3])
    with pytest.raises(ArgumentError, match=r"shape \(60,\); found numbers of shape \(3,\)"):
        al.predict(MATRIX[:, :3])


def test_estimators_that_want_dense_rows() -> None:
    pool, ids, labels = Pool.of(MATRIX), torch.arange(20), torch.from_numpy(LABELS[:20])
    given = {"classes": 2, "key": lw.rng.Key(0)}
    with pytest.raises(ModelError, match=r"which are sparse.*SklearnLearner\(GaussianNB\(\), takes_frame=False\)"):
        lw.SklearnLearner(GaussianNB()).fit(pool, ids, labels, **given)
    fit = lw.SklearnLearner(GaussianNB(), takes_frame=False).fit(pool, ids, labels, **given)
    assert fit.predict(MATRIX).shape == (90,)


def test_what_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"a matrix \(N, D\) of numbers; found .* of complex128"):
        Pool.of(sp.csr_matrix(np.eye(2, dtype=complex)))
    line = sp.coo_array(np.ones(2))
    if line.ndim == 1:  # from scipy 1.13 on
        with pytest.raises(ArgumentError, match=r"found shape \(2,\)"):
            Pool.of(line)
    with pytest.raises(ArgumentError, match=r"embedding is a dense array; found a sparse.*toarray\(\)"):
        lw.select("kcenter", k=3, embedding=MATRIX)
