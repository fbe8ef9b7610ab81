"""Runs checks and notes what each one says; the same for our strategies and for those of others."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from labelwise import strategies
from labelwise.errors import ArgumentError, LabelwiseError, NeedError
from labelwise.rng import Key
from labelwise.selection import Strategy
from labelwise.verify.case import Case, Check
from labelwise.verify.compare import REFERENCES
from labelwise.verify.invariances import INVARIANCES, Invariance
from labelwise.verify.problems import Problem, close, problem_for, same_ids, with_labelled
from labelwise.verify.result import CheckFailed, NotApplicable, Outcome, Report
from labelwise.verify.theorems import THEOREMS

# A reference of a user: (arrays, ids, k, seed) -> the ids expected, in order, or a pair of ids and weights.
Reference = Callable[[Mapping[str, np.ndarray], np.ndarray, int, int], Any]
REFERENCE_TRIES = 5
COPIES = 3


@dataclass(frozen=True)
class Job:
    """One check of one strategy, ready to run."""

    name: str
    check: str
    case: Case = field(compare=False)
    run: Check = field(compare=False)


def check_strategy(
    strategy: str | Strategy,
    arrays: Mapping[str, Any] | None = None,
    *,
    ids: Any = None,
    labelled: Mapping[str, Any] | None = None,
    k: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    reference: str | Reference | None = None,
    checks: Iterable[str] | None = None,
) -> Report:
    """Check a strategy of ours or of your own: its invariances, and its picks against a slow reference.

    Args:
        strategy: a name or a Strategy.
        arrays: of the pool, by the names of the arguments of `labelwise.select`; random ones if not given. More than
            64 rows are wanted, so that there is more than one block.
        ids: (N,) distinct integers that name the rows of `arrays`.
        labelled: the same for rows already labelled.
        k: how many rows to choose of `arrays`.
        seed: of random problems and of selections.
        device: "cpu" or "cuda": where arrays are put.
        reference: a function (arrays, ids, k, seed) that gives the ids to expect in order, or a pair of ids and
            weights; or the name of one of our strategies, whose reference yours is held to.
        checks: names of the checks to run; all if not given.

    Returns:
        A Report: `ok`, `failures`, `outcomes`; `print` it for one line a check.

    >>> from labelwise.verify import check_strategy
    >>> check_strategy("margin", checks=["k rows", "row order"]).ok
    True
    """
    made = strategies.get(strategy)
    own = None if arrays is None else _own_problem(arrays, ids, labelled, k, seed, device)
    planned = plan_one(made, seed, device, own, reference)
    wanted = None if checks is None else list(checks)
    unknown = [] if wanted is None else [one for one in wanted if one not in {job.check for job in planned}]
    if unknown:
        known = ", ".join(job.check for job in planned)
        raise ArgumentError(f"there is no check {unknown[0]!r} of {strategies.name_of(made)}; there are: {known}")
    return Report(tuple(run(job) for job in planned if wanted is None or job.check in wanted))


def plan_one(
    strategy: Strategy,
    seed: int = 0,
    device: str = "cpu",
    own: Problem | None = None,
    reference: str | Reference | None = None,
) -> list[Job]:
    """All checks of one strategy."""
    _check_device(device)
    name = strategies.name_of(strategy)
    checks: dict[str, Check] = {}
    if callable(reference):
        checks["reference"] = _against(reference, own)
    else:
        like = name if reference is None else reference
        if reference is not None and reference not in REFERENCES:
            raise ArgumentError(f"there is no reference {reference!r}; there are: {', '.join(REFERENCES)}")
        checks |= REFERENCES.get(like, {"reference": _no_reference})
        checks |= THEOREMS.get(like, {})
    checks |= {title: _invariance(check, own) for title, check in INVARIANCES.items()}
    return [Job(name, title, Case(strategy, seed, device), check) for title, check in checks.items()]


def run(job: Job) -> Outcome:
    """Run a check; whatever it raises is its outcome."""
    start, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(1)  # these problems are tiny: threads that wait for each other would take most of the time
    status, why, arrays = "passed", "", dict[str, np.ndarray]()
    try:
        job.run(job.case)
    except NotApplicable as reason:
        status, why = "not applicable", str(reason)
    except CheckFailed as reason:
        status, why, arrays = "failed", str(reason), job.case.arrays
    except Exception as error:  # whatever a strategy raises is what the check found
        last = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__}: {error} ({last.filename.rsplit('/', 1)[-1]}:{last.lineno})"
        status, arrays = "failed", job.case.arrays
    finally:
        torch.set_num_threads(threads)
    seconds = time.perf_counter() - start
    return Outcome(job.name, job.check, status, why, seconds, job.case.seed, None, arrays)  # type: ignore[arg-type]


def _own_problem(
    arrays: Mapping[str, Any], ids: Any, labelled: Mapping[str, Any] | None, k: int | None, seed: int, device: str
) -> Problem:
    given = {name: np.asarray(value) for name, value in arrays.items()}
    lengths = {len(value) for value in given.values()}
    if len(lengths) != 1:
        raise ArgumentError(f"arrays= holds one array or more, all of one length; found lengths {sorted(lengths)}")
    n = lengths.pop()
    behind = None if labelled is None else {name: np.asarray(value) for name, value in labelled.items()}
    names = np.arange(n) if ids is None else np.asarray(ids)
    return Problem(given, names, max(1, min(12, n // 2)) if k is None else k, seed, behind, device)


def _invariance(check: Invariance, own: Problem | None) -> Check:
    """The check on the user's problem, or on two random ones: distinct rows, and rows with copies."""

    def checked(case: Case) -> None:
        reasons: list[LabelwiseError] = []
        problems = [own] if own is not None else _random(case)
        for problem in problems:
            case.hold(problem)
            try:
                check(case.strategy, problem)
            except (NotApplicable, NeedError) as reason:  # some cannot choose before a row is labelled
                reasons.append(reason)
        if len(reasons) == len(problems):
            raise NotApplicable(str(reasons[0]))

    return checked


def _random(case: Case) -> list[Problem]:
    """Distinct rows and nothing labelled; rows with copies, and labelled rows where the strategy asks about them."""
    plain, copies = (problem_for(case.strategy, case.seed, copies=n, device=case.device) for n in (1, COPIES))
    try:
        return [plain, with_labelled(case.strategy, copies) if case.strategy.needs.labelled else copies]
    except NotApplicable:
        return [plain, copies]


def _against(reference: Reference, own: Problem | None) -> Check:
    """The picks of a user's reference, on the user's problem or on some random ones."""

    def checked(case: Case) -> None:
        problems = [own] if own is not None else [_small(case, turn) for turn in range(REFERENCE_TRIES)]
        for problem in problems:
            found = reference(problem.arrays, problem.ids, problem.k, problem.seed)
            ids, weights = found if isinstance(found, tuple) else (found, None)
            got = case.select(problem.k, problem.arrays, problem.ids, problem.labelled, problem.seed)
            same_ids(got.ids, ids, "the reference given")
            if weights is not None:
                close(got.weights, weights, "weights of the reference given", 1e-6, 1e-9)

    return checked


def _small(case: Case, turn: int) -> Problem:
    seed = Key(case.seed).fold("reference", turn).small()
    rng = case.rng("size", turn)
    n = int(rng.integers(10, 60))
    return replace(problem_for(case.strategy, seed, n, int(rng.integers(1, n)), device=case.device), seed=turn)


def _no_reference(case: Case) -> None:
    raise NotApplicable("no reference was given: pass reference=, a slow function of your own or one of our names")


def _check_device(device: str) -> None:
    if device not in ("cpu", "cuda"):
        raise ArgumentError(f"device is cpu or cuda, found {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("device is cuda, and torch sees no CUDA device here: leave it out to check on the CPU")
