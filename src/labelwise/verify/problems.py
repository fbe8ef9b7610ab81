"""Small random problems: arrays by name, as `labelwise.select` takes them, and the shards made from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.arrays import select
from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.selection.validate import ARRAYS
from labelwise.shards import Shards, computed_in, shards_of
from labelwise.signals.spec import Basis, GradSketch, Label, LabelProbs, LogProbs, Signal, Weight, stored
from labelwise.verify.result import CheckFailed, NotApplicable

ROWS = 150  # three blocks of the smallest size
PICKS = 12
NO_ROWS = Shards([])


@dataclass(frozen=True)
class Problem:
    """Rows to choose from, and how many.

    Attributes:
        arrays: by the name of the argument of `labelwise.select`, the first axis is the rows.
        ids: (N,) distinct integers.
        k: how many rows are asked for.
        seed: of the selection.
        labelled: arrays of the rows already labelled; "ids" may be among them.
        device: where the arrays are put before the strategy reads them.
    """

    arrays: Mapping[str, np.ndarray]
    ids: np.ndarray
    k: int
    seed: int = 0
    labelled: Mapping[str, np.ndarray] | None = None
    device: str = "cpu"

    def ordered(self, order: np.ndarray) -> Problem:
        """The same rows in another order."""
        arrays = {name: value[order] for name, value in self.arrays.items()}
        return replace(self, arrays=arrays, ids=self.ids[order])

    def cast(self, dtype: Any) -> Problem:
        """The same rows in another precision; labels and ids stay integers."""
        labelled = {k: v if v.dtype.kind in "iu" else v.astype(dtype) for k, v in (self.labelled or {}).items()}
        arrays = {name: value.astype(dtype) for name, value in self.arrays.items()}
        return replace(self, arrays=arrays, labelled=labelled or None)


def random_arrays(
    n: int, seed: int = 0, classes: int = 4, width: int = 5, draws: int = 6, dtype: Any = np.float64
) -> dict[str, np.ndarray]:
    """Random arrays of the kinds that most strategies read."""
    rng = Key(seed).numpy()
    arrays = {
        "probs": rng.dirichlet(np.ones(classes), n).astype(dtype),
        "embedding": rng.normal(size=(n, width)).astype(dtype),
        "log_probs": np.log(rng.dirichlet(np.ones(classes), (n, draws))).astype(dtype),
        "duals": rng.exponential(size=n).astype(dtype),
        "grad_sqnorm": rng.exponential(size=n).astype(dtype),
        "grad_dot": rng.normal(size=n).astype(dtype),
    }
    return with_label_probs(arrays)


def with_label_probs(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays and "label_probs", the probabilities at temperature 2."""
    root = np.sqrt(arrays["probs"].astype(np.float64))
    return {**arrays, "label_probs": (root / root.sum(1, keepdims=True)).astype(arrays["probs"].dtype)}


def signals_read(strategy: Strategy, arrays: Iterable[str] | None = None) -> tuple[Signal, ...]:
    """The signals of pool rows that a strategy reads from arrays of these names; None is every array it may read."""
    given = None if arrays is None else set(arrays)
    instead = strategy.needs.instead
    if given is not None and not all(signal.array in given for signal in instead):
        instead = ()
    found: list[Signal] = []
    for signal in strategy.needs.pool + instead:
        is_given = isinstance(signal, Basis) and given is not None and "basis" in given
        found.extend((signal,) if is_given else signal.stored())
    return tuple(dict.fromkeys(found))


def problem_for(
    strategy: Strategy, seed: int, n: int = ROWS, k: int = PICKS, copies: int = 1, device: str = "cpu"
) -> Problem:
    """A random problem with the arrays that the strategy reads; each row occurs `copies` times."""
    arrays = {name: np.concatenate([one] * copies) for name, one in random_arrays(n // copies, seed).items()}
    n = n // copies * copies
    if any(isinstance(signal, GradSketch) for signal in signals_read(strategy)):
        arrays["grad_sketch"] = Key(seed).fold("sketch").numpy().normal(size=(n, 8))
    unknown = [signal.array for signal in signals_read(strategy) if signal.array not in arrays]
    if unknown:
        raise NotApplicable(f"no random {unknown[0]} can be made to check it on; pass arrays=")
    wanted = {signal.array for signal in signals_read(strategy)}
    ids = Key(seed).fold("ids").numpy().permutation(10 * n)[:n] - n
    return Problem({name: value for name, value in arrays.items() if name in wanted}, ids, k, seed, device=device)


def labelled_arrays(strategy: Strategy, rows: np.ndarray, classes: int = 4) -> dict[str, np.ndarray] | None:
    """The arrays of labelled rows that the strategy reads, as a function of their embeddings (L, D)."""
    wanted = {signal.array for signal in stored(strategy.needs.labelled)}
    nearest = (np.abs(rows).sum(1).round(3) * 1000 % classes).astype(int)
    arrays = {
        "embedding": rows,
        "probs": (0.5 * np.eye(classes)[nearest] + 0.5 / classes).astype(rows.dtype),
        "y": nearest,
        "duals": np.abs(rows).sum(1),
        "weights": np.float32(0.5) + np.abs(rows[:, :1]).sum(1).astype(np.float32),
    }
    return {name: arrays[name] for name in arrays if name in wanted} or None


def with_labelled(strategy: Strategy, problem: Problem) -> Problem:
    """The problem with random labelled rows with ids, and without the arrays that would take their place."""
    labelled = problem.labelled
    if labelled is None and "embedding" in problem.arrays:
        rows = Key(problem.seed).fold("labelled").numpy().normal(size=(9, problem.arrays["embedding"].shape[1]))
        classes = problem.arrays["probs"].shape[1] if "probs" in problem.arrays else 4
        labelled = labelled_arrays(strategy, rows, classes)
    if labelled is None:
        raise NotApplicable("no random labelled rows can be made for it; pass labelled=")
    names = int(problem.ids.max()) + 1 + np.arange(len(next(iter(labelled.values()))))
    instead = {signal.array for signal in strategy.needs.instead}
    arrays = {name: value for name, value in problem.arrays.items() if name not in instead}
    return replace(problem, arrays=arrays, labelled={"ids": names, **labelled})


def by_lot(ids: np.ndarray, seed: int = 0) -> np.ndarray:
    """These ids in the order of their lots under a seed: rows named so are tied in favour of the earlier row.

    The references break ties so.
    """
    named: np.ndarray = ids[Key(seed).lots(torch.from_numpy(ids)).argsort().numpy()]
    return named


def picks_of(strategy: Strategy, problem: Problem) -> Selection:
    """The picks of a strategy by `labelwise.select`."""
    arrays = {name: tensor(value, problem.device) for name, value in problem.arrays.items()}
    labelled = {name: tensor(value, problem.device) for name, value in (problem.labelled or {}).items()}
    ids = tensor(problem.ids, problem.device)
    return select(strategy, problem.k, **arrays, ids=ids, labelled=labelled or None, seed=problem.seed)


def tensor(array: np.ndarray, device: str) -> Any:
    """A tensor on the device; on the CPU the array itself, so that the strategy reads the user's memory."""
    return array if device == "cpu" else torch.from_numpy(np.ascontiguousarray(array)).to(device)


def shards_for(strategy: Strategy, problem: Problem, count: int = 1) -> tuple[Strategy, Shards, Shards]:
    """The strategy in the form for these arrays, its pool in `count` shards, and the labelled rows."""
    strategy = strategy.given(frozenset(problem.arrays))
    columns = _columns(problem, signals_read(strategy, problem.arrays), problem.arrays)
    ids, labelled, ties = _tensor(problem.ids, problem.device), problem.labelled, Key(problem.seed)
    instead = {signal.array for signal in strategy.needs.instead} & set(problem.arrays)
    if not labelled or not strategy.needs.labelled or instead:
        return strategy, shards_of(ids, columns, count).with_ties(ties), NO_ROWS
    labelled_columns = _columns(problem, stored(strategy.needs.labelled), labelled)
    length = len(next(iter(labelled.values())))
    names = labelled["ids"] if "ids" in labelled else min(0, int(problem.ids.min())) - 1 - np.arange(length)
    dtype = max(computed_in(columns), computed_in(labelled_columns), key=lambda kind: kind.itemsize)
    labelled_shards = shards_of(_tensor(names, problem.device), labelled_columns, 1, dtype, "labelled row")
    return strategy, shards_of(ids, columns, count, dtype).with_ties(ties), labelled_shards


def _columns(problem: Problem, signals: tuple[Signal, ...], arrays: Mapping[str, np.ndarray]) -> dict[Signal, Tensor]:
    by_signal: dict[Signal, np.ndarray] = {
        signal: arrays[name] for name, (gives, _) in ARRAYS.items() if name in arrays for signal in gives
    }
    if "probs" in arrays:
        by_signal.setdefault(LabelProbs(), arrays["probs"])
    if "y" in arrays:
        by_signal[Label()] = arrays["y"]
    if "weights" in arrays:
        by_signal[Weight()] = arrays["weights"]
    columns = {}
    for signal in signals:
        plain = LogProbs() if isinstance(signal, LogProbs) else Basis() if isinstance(signal, Basis) else signal
        found = by_signal.get(plain, arrays.get(signal.array))
        if found is None:
            raise NotApplicable(f"the problem has no {signal.array}; pass it in arrays=")
        columns[signal] = _tensor(found, problem.device)
    return columns


def _tensor(array: np.ndarray, device: str) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def expect_same(a: Selection, b: Selection, what: str, scores: bool = True) -> None:
    """Raise CheckFailed unless two selections hold the same rows in the same order with the same numbers."""
    expect_ids(b.ids.tolist(), a.ids.tolist(), what)
    if not scores:
        return
    for name, rtol, atol in (("scores", 1e-4, 1e-6), ("weights", 1e-3, 1e-5)):
        expect_close(getattr(b, name), getattr(a, name), f"{what}: {name}", rtol, atol)


def expect_ids(found: Any, expected: Any, what: str) -> None:
    """Raise CheckFailed unless the ids are equal, in the same order."""
    got, want = [int(i) for i in found], [int(i) for i in expected]
    if got != want:
        first = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        raise CheckFailed(
            f"{what}: expected rows {_excerpt(want, first)}, "
            f"found {_excerpt(got, first)}, first difference at pick {first + 1}"
        )


def expect_close(found: Any, expected: Any, what: str, rtol: float = 1e-9, atol: float = 0.0) -> None:
    """Raise CheckFailed unless the numbers are equal within the tolerances."""
    got, want = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if got.shape != want.shape:
        raise CheckFailed(f"{what}: expected {want.shape} numbers, found {got.shape}")
    wrong = ~np.isclose(got, want, rtol=rtol, atol=atol)
    if wrong.any():
        first = int(np.flatnonzero(wrong.ravel())[0])
        raise CheckFailed(
            f"{what}: expected {want.ravel()[first]:.12g}, found {got.ravel()[first]:.12g} at position {first + 1} "
            f"({int(wrong.sum())} of {wrong.size} differ by more than {rtol:g})"
        )


def expect(holds: bool, what: str) -> None:
    """Raise CheckFailed with this message unless it holds."""
    if not holds:
        raise CheckFailed(what)


def _excerpt(ids: list[int], first: int) -> str:
    start = max(0, first - 2)
    listed = ", ".join(str(i) for i in ids[start : first + 4])
    return f"[{'... ' if start else ''}{listed}{' ...' if first + 4 < len(ids) else ''}]"
