"""Everything that can go wrong at `lw.select`: one clear error of the family, which names the value and the row."""

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch

import labelwise as lw
from labelwise.errors import ArgumentError, BudgetError, LabelwiseError, NeedError, NumericsError, RowError
from labelwise.signals.spec import Embedding, Needs, stored
from labelwise.verify.problems import labelled_arrays, problem_for

RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(3), 30)
H = RNG.normal(size=(30, 4))
# The strategies that these two arrays are enough for.
NEEDS = {name: lw.strategies.get(name).needs for name in lw.strategies.names()}
PLAIN = [
    name
    for name, needs in NEEDS.items()
    if {signal.array for signal in stored(needs.pool + needs.labelled)} <= {"probs", "label_probs", "embedding"}
]


def _picks_or_error(
    name: str, k: int, family: type[LabelwiseError] = LabelwiseError, **arrays: object
) -> list[int] | str:
    """The picks, or the text of the clear error where one is as good an answer."""
    try:
        return lw.select(name, k, **arrays).ids.tolist()  # type: ignore[arg-type]
    except family as error:
        return str(error)


# --- k and seed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, -1, -(10**20)])
def test_k_below_one(k: int):
    with pytest.raises(BudgetError, match=f"at least 1, found {k}"):
        lw.select("entropy", k, probs=P)


@pytest.mark.parametrize("k", [31, 1000, 10**20])
def test_k_above_the_free_rows_says_how_many_there_are(k: int):
    with pytest.raises(BudgetError, match=rf"{k}.*only 30 are free"):
        lw.select("entropy", k, probs=P)


@pytest.mark.parametrize(
    "k",
    [
        2.0,
        1.5,
        True,
        False,
        "3",
        None,
        [3],
        np.float64(3),
        np.bool_(True),
        torch.tensor(True),
        torch.tensor(3.0),
        torch.tensor([3]),
        np.array([3]),
        1j,
    ],
)
def test_k_that_is_no_whole_number(k: object):
    with pytest.raises(BudgetError, match="whole number"):
        lw.select("entropy", k, probs=P)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PLAIN)
def test_empty_pool(name: str):
    with pytest.raises(BudgetError, match="no row"):
        lw.select(name, 1, probs=P[:0], embedding=H[:0])


@pytest.mark.parametrize("seed", [-1, 1.5, True, None, "0", np.float32(1)])
def test_bad_seed(seed: object):
    with pytest.raises(ArgumentError, match="seed"):
        lw.select("random", 1, probs=P, seed=seed)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [0, 2**31, 2**63, 2**64 - 1, 2**100, np.int64(7), np.uint64(2**63)])
def test_any_whole_seed(seed: int):
    for name in PLAIN:
        assert len(lw.select(name, 5, probs=P, embedding=H, seed=seed)) == 5
        assert (
            lw.select(name, 5, probs=P, embedding=H, seed=int(seed)).ids.tolist()
            == lw.select(name, 5, probs=P, embedding=H, seed=seed).ids.tolist()
        )


# --- the strategy ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["bagde", "", "Badge", None, 3, ["badge"], {"badge": 1}, lw.strategies.Badge])
def test_unknown_strategy_lists_the_names(strategy: object):
    with pytest.raises(ArgumentError, match="entropy") as error:
        lw.select(strategy, 1, probs=P)  # type: ignore[arg-type]
    for name in PLAIN:
        assert name in str(error.value)


@pytest.mark.parametrize(
    ("name", "given", "missing"),
    [
        ("entropy", {"embedding": H}, "probs"),
        ("margin", {"label_probs": P}, "probs"),
        ("kcenter", {"probs": P}, "embedding"),
        ("badge", {"probs": P}, "embedding"),
        ("badge", {"embedding": H}, "probs"),
        ("typiclust", {"probs": P}, "embedding"),
        ("probcover", {"ids": np.arange(30)}, "embedding"),
    ],
)
def test_a_missing_array_is_named_with_the_way_to_get_it(name: str, given: dict[str, np.ndarray], missing: str):
    with pytest.raises(NeedError, match=rf"needs {missing}.*pass {missing}=") as error:
        lw.select(name, 1, **given)
    assert type(lw.strategies.get(name)).__name__ in str(error.value)


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("name", "signal"),
    [
        ("entropy", "probs"),
        ("confidence", "probs"),
        ("margin", "probs"),
        ("badge", "probs"),
        ("badge", "embedding"),
        ("kcenter", "embedding"),
        ("typiclust", "embedding"),
        ("probcover", "embedding"),
    ],
)
def test_a_bad_value_names_the_row_by_its_id_and_the_signal(name: str, signal: str, bad: float, dtype: type):
    arrays = {"probs": P.astype(dtype), "embedding": H.astype(dtype)}
    arrays[signal][[17, 22], 1] = bad
    for tensors in (False, True):
        given = {key: torch.from_numpy(value) if tensors else value for key, value in arrays.items()}
        with pytest.raises(NumericsError, match=r"row id 517 ") as error:
            lw.select(name, 3, **given, ids=np.arange(500, 530))
        assert signal in str(error.value)
        assert str(float(bad)) in str(error.value)


def test_a_bad_value_is_found_whatever_the_parameters():
    bad = H.copy()
    bad[3, 0] = np.nan
    for strategy in (lw.strategies.ProbCover(delta=0.5), lw.strategies.TypiClust(max_clusters=1)):
        for k in (1, 30):
            with pytest.raises(NumericsError, match="row id 3 "):
                lw.select(strategy, k, embedding=bad)


@pytest.mark.parametrize("name", ["entropy", "margin", "confidence", "badge"])
@pytest.mark.parametrize(
    ("row", "found"),
    [
        ([0.5, 0.5, 0.5], "1.5"),
        ([0.2, 0.2, 0.2], "0.6"),
        ([1.2, -0.1, -0.1], "-0.1"),
        ([3.0, -4.0, 2.0], "softmax"),
        ([0.0, 0.0, 0.0], "sums to 0"),
        ([-1.2, -0.9, -1.2], "softmax"),
    ],
)
def test_rows_that_are_no_probabilities(name: str, row: list[float], found: str):
    probs = P.copy()
    probs[11] = row
    with pytest.raises(NumericsError, match=r"probs.*[Rr]ow id 11 ") as error:
        lw.select(name, 3, probs=probs, embedding=H)
    assert found in str(error.value)


def test_logits_and_percentages_and_log_probabilities():
    for wrong in (RNG.normal(size=(30, 3)) * 5, 100 * P, np.log(P)):
        with pytest.raises(NumericsError, match="softmax"):
            lw.select("entropy", 3, probs=wrong)


@pytest.mark.parametrize("name", ["kcenter", "probcover"])
@pytest.mark.parametrize("scale", [1e25, 1e-25])
def test_squares_that_leave_float32_are_an_error_or_the_right_answer(name: str, scale: float):
    right = lw.select(name, 5, embedding=H).ids.tolist()
    got = _picks_or_error(name, 5, NumericsError, embedding=(H * scale).astype(np.float32))
    assert isinstance(got, str) or got == right


def test_large_finite_values_pass_the_check():
    big = H.copy()
    big[5] = 1e150
    assert 5 in lw.select("kcenter", 3, embedding=big).ids


# --- shapes ----------------------------------------------------------------------------------------------------------

OTHER_CLASSES = {"probs": np.full((2, 2), 0.5), "embedding": H[:2]}


@pytest.mark.parametrize(
    ("name", "given", "error", "match"),
    [
        ("bagde", {"probs": P}, ArgumentError, "no strategy 'bagde'; did you mean 'badge'"),
        ("random", {}, NeedError, "probs.*embedding"),
        ("badge", {"probs": P, "embedding": H[:29]}, RowError, "probs 30.*embedding 29"),
        ("entropy", {"probs": P, "ids": np.arange(31)}, RowError, "probs 30.*ids 31"),
        ("kcenter", {"embedding": np.zeros((30, 0))}, RowError, r"at least one column.*\(30, 0\)"),
        ("entropy", {"probs": np.zeros((30, 0))}, RowError, "at least one column"),
        ("entropy", {"probs": [[0.5, 0.5], [1.0]]}, LabelwiseError, "probs"),  # ragged
        ("entropy", {"probs": P[:4], "ids": [8, 7, 3, 7]}, RowError, "distinct; id 7 "),
        ("entropy", {"probs": P[:6], "ids": [7, 1, 7, 9, 9, 9]}, RowError, "id 7 occurs 2 times"),
        ("entropy", {"probs": P, "ids": np.arange(30)[:, None]}, RowError, "ids must have 1 ax"),
        (
            "bait",
            {"probs": P, "embedding": H, "labelled": OTHER_CLASSES},
            RowError,
            "probs has 3 .* 2 in labelled",
        ),
    ],
)
def test_what_does_not_fit_is_named(name: str, given: dict[str, Any], error: type[LabelwiseError], match: str):
    with pytest.raises(error, match=match):
        lw.select(name, 1, **given)


@pytest.mark.parametrize("shape", [(), (30,), (30, 4, 1), (1, 30, 4)])
def test_wrong_number_of_axes(shape: tuple[int, ...]):
    for wrong in (np.zeros(shape), torch.zeros(shape)):
        with pytest.raises(RowError, match=r"embedding must have 2 axes.*" + str(shape).replace("(", r"\(")[:-1]):
            lw.select("kcenter", 1, embedding=wrong)


# --- ids -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [np.arange(30.0), np.arange(30) % 2 == 0, torch.arange(30.0)])
def test_ids_that_are_no_integers(ids: object):
    with pytest.raises(RowError, match="ids must be integers"):
        lw.select("entropy", 1, probs=P, ids=ids)


@pytest.mark.parametrize("ids", [[None] * 30, ["a"] * 29 + [float("nan")], ["a", "b"] * 15])
def test_ids_that_are_missing_or_repeated(ids: object):
    with pytest.raises(RowError, match=r"the id of a row is missing|id 'a' occurs 15 times"):
        lw.select("entropy", 1, probs=P, ids=ids)


def test_values_of_uint64_are_not_wrapped():
    """Read as int64, 2^64 - 5 would be -5 and lie near 0."""
    x = np.array([[0], [100], [2**64 - 5], [2]], dtype=np.uint64)
    assert lw.select("kcenter", 1, embedding=x, labelled={"embedding": x[:1]}).ids.tolist() == [2]


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4"])
def test_ids_of_any_integer_type(dtype: str):
    ids = (np.arange(30) + 50).astype(dtype)
    for name in ("badge", "kcenter", "entropy"):
        got = lw.select(name, 4, probs=P, embedding=H, ids=ids)
        assert set(got.ids.tolist()) <= set(range(50, 80))
        assert got.ids.tolist() == lw.select(name, 4, probs=P, embedding=H, ids=np.arange(50, 80)).ids.tolist()


# --- types -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        P.astype(object),
        P.astype(complex),
        P.astype(str),
        np.zeros(30, dtype=[("a", "f4"), ("b", "f4")]),
        [["a", "b"]] * 30,
        [None] * 30,
        "probs.npy",
        {"a": 1},
        object(),
        lambda: P,
        torch.complex(torch.as_tensor(P), torch.as_tensor(P)),
        np.zeros((30, 3), "m8[s]"),
    ],
)
def test_what_is_no_array_of_real_numbers(wrong: object):
    with pytest.raises(ArgumentError, match="probs"):
        lw.select("entropy", 1, probs=wrong)


def test_a_masked_array_is_not_read_without_its_mask():
    masked = np.ma.masked_array(H, mask=np.zeros_like(H, dtype=bool))
    masked.mask[3, 1] = True
    with pytest.raises(LabelwiseError, match="mask"):
        lw.select("kcenter", 3, embedding=masked)


def test_a_masked_array_without_masked_entries_is_an_array():
    masked = np.ma.masked_array(H, mask=np.zeros_like(H, dtype=bool))
    got = _picks_or_error("kcenter", 3, embedding=masked)
    assert "mask" in got if isinstance(got, str) else got == lw.select("kcenter", 3, embedding=H).ids.tolist()


def test_sparse_tensors_are_refused_clearly():
    with pytest.raises(ArgumentError, match=r"embedding.*sparse"):
        lw.select("kcenter", 3, embedding=torch.as_tensor(H).to_sparse())
    scipy_sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(ArgumentError, match="embedding"):
        lw.select("kcenter", 3, embedding=scipy_sparse.csr_matrix(H))


def test_packed_records_with_odd_strides():
    packed = np.zeros(30, dtype=[("a", "u1"), ("h", "f8", (4,))])
    packed["h"] = H
    assert (
        lw.select("kcenter", 5, embedding=packed["h"]).ids.tolist() == lw.select("kcenter", 5, embedding=H).ids.tolist()
    )


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.int32, np.uint16, np.uint32, np.int64, np.longdouble])
def test_whole_and_wide_numbers_are_numbers(dtype: type):
    onehot = np.eye(3)[np.arange(30) % 3]
    got = lw.select("badge", 5, probs=onehot.astype(dtype), embedding=onehot.astype(dtype))
    assert got.ids.tolist() == lw.select("badge", 5, probs=onehot, embedding=onehot).ids.tolist()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_tensors(dtype: torch.dtype):
    probs, embedding = torch.as_tensor(P).to(dtype), torch.as_tensor(H).to(dtype)
    for name in PLAIN:
        got = lw.select(name, 5, probs=probs, embedding=embedding)
        assert len(got) == 5
        # Computed in float32 from what half precision holds.
        assert got.ids.tolist() == lw.select(name, 5, probs=probs, embedding=embedding.float()).ids.tolist()


def test_tensors_that_ask_for_gradients():
    probs = torch.as_tensor(P).requires_grad_()
    embedding = torch.as_tensor(H).requires_grad_()
    got = lw.select("badge", 5, probs=probs * 1.0, embedding=embedding)
    assert got.ids.tolist() == lw.select("badge", 5, probs=P, embedding=H).ids.tolist()
    assert probs.grad is None


def test_lists_of_tensors():
    plain = lw.select("kcenter", 5, embedding=H).ids.tolist()
    for rows in ([torch.as_tensor(row) for row in H], [torch.as_tensor(row).requires_grad_() for row in H]):
        got = _picks_or_error("kcenter", 5, embedding=rows)
        assert "embedding" in got if isinstance(got, str) else got == plain


def test_an_object_that_gives_an_array_is_an_array():
    """Such as a table of pandas, without pandas."""

    class Table:
        def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
            return H

    assert lw.select("kcenter", 5, embedding=Table()).ids.tolist() == lw.select("kcenter", 5, embedding=H).ids.tolist()


@pytest.mark.slow
def test_pandas_is_not_needed():
    code = (
        "import sys; sys.modules['pandas'] = None; sys.modules['scipy'] = None; sys.modules['sklearn'] = None\n"
        "import numpy as np, labelwise as lw\n"
        "r = np.random.default_rng(0)\n"
        f"for name in {PLAIN!r}:\n"
        "    lw.select(name, 5, probs=r.dirichlet(np.ones(3), 30), embedding=r.normal(size=(30, 4)))\n"
    )
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


def test_broadcast_arrays():
    same = np.broadcast_to(H[0], (30, 4))
    assert len(lw.select("kcenter", 5, embedding=same)) == 5
    assert len(lw.select("kcenter", 5, embedding=torch.as_tensor(H[0]).expand(30, 4))) == 5


@pytest.mark.parametrize("name", ["sabal-greedy", "sabal-iht"])
@pytest.mark.parametrize("width", [1, 2])
def test_class_probabilities_of_another_width(name: str, width: int):
    other = np.full((len(P), width), 1 / width)
    with pytest.raises(RowError, match=rf"the same classes.*probs {P.shape[1]}, label_probs {width}"):
        lw.select(name, 1, probs=P, label_probs=other, embedding=H)


# --- labelled --------------------------------------------------------------------------------------------------------

KNOWS = ["kcenter", "typiclust", "probcover"]


@pytest.mark.parametrize("name", KNOWS)
def test_labelled_of_another_width(name: str):
    with pytest.raises(RowError, match=r"embedding has 4 columns in the pool and 5 in labelled"):
        lw.select(name, 1, embedding=H, labelled={"embedding": np.zeros((2, 5))})


@pytest.mark.parametrize("name", PLAIN)
def test_labelled_with_an_unknown_entry(name: str):
    with pytest.raises(ArgumentError, match=r"'labels'.*embedding.*y"):
        lw.select(name, 1, probs=P, embedding=H, labelled={"labels": [1, 2]})


@pytest.mark.parametrize("name", KNOWS)
def test_labelled_without_what_is_needed(name: str):
    with pytest.raises(NeedError, match=r"labelled embedding"):
        lw.select(name, 1, embedding=H, labelled={"y": [0, 1]})


@pytest.mark.parametrize("name", KNOWS)
def test_a_bad_value_in_a_labelled_row_says_that_it_is_a_labelled_one(name: str):
    bad = H[:5].copy()
    bad[2, 1] = np.nan
    with pytest.raises(NumericsError, match="labelled") as error:
        lw.select(name, 3, embedding=H + 1, labelled={"embedding": bad})
    assert "nan" in str(error.value)
    assert "-3" not in str(error.value)  # a name made up inside says nothing to the caller
    with pytest.raises(NumericsError, match=r"labelled.*902"):
        lw.select(name, 3, embedding=H + 1, labelled={"embedding": bad, "ids": np.arange(900, 905)})


@pytest.mark.parametrize("name", KNOWS)
@pytest.mark.parametrize("dtypes", [(np.float32, np.float64), (np.float64, np.float32), (np.float16, np.float64)])
def test_labelled_rows_of_another_precision(name: str, dtypes: tuple[type, type]):
    got = lw.select(name, 5, embedding=H.astype(dtypes[0]), labelled={"embedding": (H[:4] + 0.5).astype(dtypes[1])})
    assert len(set(got.ids.tolist())) == 5


@pytest.mark.parametrize("name", KNOWS)
def test_labelled_lengths_and_shapes(name: str):
    with pytest.raises(RowError, match=r"labelled.*embedding 3.*y 2"):
        lw.select(name, 1, embedding=H, labelled={"embedding": H[:3], "y": [0, 1]})
    with pytest.raises(RowError, match="axes"):
        lw.select(name, 1, embedding=H, labelled={"embedding": H[0]})
    with pytest.raises(RowError, match="distinct"):
        lw.select(name, 1, embedding=H, labelled={"embedding": H[:2], "ids": [900, 900]})


@pytest.mark.parametrize("name", KNOWS)
@pytest.mark.parametrize("wrong", [H, H.tolist(), (H, H), "rows", 3])
def test_labelled_that_is_no_dict(name: str, wrong: object):
    with pytest.raises(ArgumentError, match="labelled"):
        lw.select(name, 1, embedding=H, labelled=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PLAIN)
def test_nothing_labelled_yet_in_any_spelling(name: str):
    expected = lw.select(name, 4, probs=P, embedding=H).ids.tolist()
    for nothing in ({}, {"embedding": None}, {"embedding": H[:0], "probs": P[:0], "y": []}):
        assert lw.select(name, 4, probs=P, embedding=H, labelled=nothing).ids.tolist() == expected


@pytest.mark.parametrize("name", KNOWS)
def test_a_row_that_is_labelled_is_never_picked_again(name: str):
    """Ids given for both: an error that names the row, or picks without it; not a row that is labelled already."""
    labelled = {"embedding": H[:5], "ids": np.arange(5)}
    got = _picks_or_error(name, 25, RowError, embedding=H, ids=np.arange(30), labelled=labelled)
    assert "0" in got if isinstance(got, str) else not set(got) & set(range(5))


# --- the answer ------------------------------------------------------------------------------------------------------


def test_selections_can_be_compared():
    a, b = (lw.select("random", 4, probs=P, seed=1) for _ in range(2))
    assert isinstance(a == b, bool)


@pytest.mark.parametrize(
    ("ids", "weights", "scores", "error", "match"),
    [
        ([1, 1], [1, 1], [0, 0], RowError, "id 1 "),
        ([1, 2], [1], [0, 0], RowError, r"\(1,\)"),
        ([[1, 2]], [[1, 1]], [[0, 0]], RowError, "shapes"),
        ([1, 2], [1, np.nan], [0, 0], NumericsError, "weights.*row id 2"),
        ([1, 2], [1, 1], [np.inf, 0], NumericsError, "scores.*row id 1"),
        ([1, 2], [1, -1], [0, 0], NumericsError, "row id 2"),
        ([1.5, 2.0], [1, 1], [0, 0], RowError, "integer"),
    ],
)
def test_a_selection_is_checked_on_creation(ids: list, weights: list, scores: list, error: type, match: str):
    with pytest.raises(error, match=match):
        lw.Selection(ids, weights, scores)  # type: ignore[arg-type]


def test_arguments_after_k_are_named():
    with pytest.raises(TypeError):
        lw.select("entropy", 1, P)  # type: ignore[misc]


def test_threads_do_not_disturb_each_other():
    expected = lw.select("badge", 10, probs=P, embedding=H).ids.tolist()
    found: list[list[int]] = []
    work = [
        threading.Thread(target=lambda: found.append(lw.select("badge", 10, probs=P, embedding=H).ids.tolist()))
        for _ in range(4)
    ]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert found == [expected] * 4


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int16, np.uint64, np.int64, np.array, torch.tensor])
@pytest.mark.parametrize("name", lw.strategies.names())
def test_k_of_any_integer_kind_gives_the_same_picks(name, kind):
    strategy = lw.strategies.get(name)
    problem = problem_for(strategy, 0, n=120, k=50)
    arrays = problem.arrays or {"ids": problem.ids}
    expected = lw.select(strategy, 50, **arrays, labelled=_past(strategy, problem), seed=1)
    got = lw.select(strategy, kind(50), **arrays, labelled=_past(strategy, problem), seed=1)
    assert got.ids.tolist() == expected.ids.tolist()


def _past(strategy, problem):
    return labelled_arrays(strategy, problem.arrays["embedding"][:9]) if "embedding" in problem.arrays else None


def test_a_score_of_a_wrong_shape_is_named():
    class Wide(lw.Scored):
        needs = Needs(pool=(Embedding(),))

        def score(self, rows, key):
            return rows[Embedding()]

    with pytest.raises(RowError, match=r"Wide.score must return .* of shape \(20,\); found \(20, 3\)"):
        lw.select(Wide(), k=2, embedding=np.zeros((20, 3)))


def test_ids_beyond_64_bits_come_back_as_they_are():
    plain = lw.select("entropy", 5, probs=P).ids.tolist()
    for ids in (np.arange(30, dtype=np.uint64) + 2**63, [2**70 + row for row in range(30)]):
        assert lw.select("entropy", 5, probs=P, ids=ids).ids.tolist() == [int(ids[row]) for row in plain]
