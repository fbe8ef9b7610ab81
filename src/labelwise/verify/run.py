"""Run checks and collect their outcomes, for the strategies of Labelwise and for those of others."""

from __future__ import annotations

import importlib.util
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
from labelwise.verify import compare, theorems  # noqa: F401  they add their checks to CHECKS
from labelwise.verify.case import CHECKS, Case, Check
from labelwise.verify.invariances import INVARIANCES, Invariance
from labelwise.verify.problems import Problem, expect_close, expect_ids, problem_for, with_labelled
from labelwise.verify.result import CheckFailed, NotApplicable, Outcome, Report

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
    """Check a strategy of Labelwise or of your own: its invariances, and its picks against a slow reference.

    Args:
        strategy: a name or a Strategy.
        arrays: columns of the pool (N, ...), by the names of the arguments of `labelwise.select`; random ones if not
            given. Pass more than 64 rows, or they all fit into one block.
        ids: (N,) distinct integers that name the rows of `arrays`.
        labelled: the same for rows already labelled.
        k: how many rows to choose of `arrays`.
        seed: of random problems and of selections.
        device: "cpu" or "cuda", where arrays are put.
        reference: a function (arrays, ids, k, seed) that returns the expected ids in order, or a pair of ids and
            weights; or the name of a strategy of Labelwise, to compare with its reference. Without it, the function
            `select` of a module `reference` in the package of the strategy, if there is one.
        checks: names of the checks to run; all if not given.

    Returns:
        A Report with `ok`, `failures` and `outcomes`; `print` shows one line for each check.

    Raises:
        ArgumentError: an unknown strategy, check, reference or device, or arrays of different lengths.

    >>> from labelwise.verify import check_strategy
    >>> check_strategy("margin", checks=["k rows", "row order"]).ok
    True
    """
    made = strategies.get(strategy)
    problem = None if arrays is None else _problem_from(arrays, ids, labelled, k, seed, device)
    planned = plan_one(made, seed, device, problem, reference)
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
    problem: Problem | None = None,
    reference: str | Reference | None = None,
) -> list[Job]:
    """All checks of one strategy, ready to run."""
    _check_device(device)
    name = strategies.name_of(strategy)
    checks: dict[str, Check] = {}
    if callable(reference):
        checks["reference"] = _compare(reference, problem)
    else:
        like = name if reference is None else reference
        if reference is not None and reference not in CHECKS:
            known = ", ".join(one for one in strategies.names() if one in CHECKS)
            raise ArgumentError(f"there is no reference {reference!r}; there are: {known}")
        checks |= CHECKS.get(like) or {"reference": _compare(_own_reference(strategy), problem)}
    checks |= {title: _invariance(check, problem) for title, check in INVARIANCES.items()}
    return [Job(name, title, Case(strategy, seed, device), check) for title, check in checks.items()]


def run(job: Job) -> Outcome:
    """Run a check and turn what it raises into an outcome."""
    start, threads = time.perf_counter(), torch.get_num_threads()
    torch.set_num_threads(1)  # the problems are tiny: threads would mostly wait for each other
    status, why, arrays = "passed", "", dict[str, np.ndarray]()
    try:
        job.run(job.case)
    except NotApplicable as reason:
        status, why = "not applicable", str(reason)
    except CheckFailed as reason:
        status, why, arrays = "failed", str(reason), job.case.arrays
    except Exception as error:  # any error of a strategy is a finding
        last = traceback.extract_tb(error.__traceback__)[-1]
        why = f"{type(error).__name__}: {error} ({last.filename.rsplit('/', 1)[-1]}:{last.lineno})"
        status, arrays = "failed", job.case.arrays
    finally:
        torch.set_num_threads(threads)
    seconds = time.perf_counter() - start
    return Outcome(job.name, job.check, status, why, seconds, job.case.seed, None, arrays)  # type: ignore[arg-type]


def _problem_from(
    arrays: Mapping[str, Any], ids: Any, labelled: Mapping[str, Any] | None, k: int | None, seed: int, device: str
) -> Problem:
    columns = {name: np.asarray(value) for name, value in arrays.items()}
    lengths = {len(value) for value in columns.values()}
    if len(lengths) != 1:
        raise ArgumentError(
            f"arrays= must hold at least one array, all of the same length; found lengths {sorted(lengths)}"
        )
    n = lengths.pop()
    known = None if labelled is None else {name: np.asarray(value) for name, value in labelled.items()}
    names = np.arange(n) if ids is None else np.asarray(ids)
    return Problem(columns, names, max(1, min(12, n // 2)) if k is None else k, seed, known, device)


def _invariance(check: Invariance, problem: Problem | None) -> Check:
    """The check on the user's problem, or on two random ones: distinct rows, and rows with copies."""

    def checked(case: Case) -> None:
        reasons: list[LabelwiseError] = []
        problems = [problem] if problem is not None else _random(case)
        for one in problems:
            case.record_problem(one)
            try:
                check(case.strategy, one)
            except (NotApplicable, NeedError) as reason:  # some strategies need labelled rows to choose
                reasons.append(reason)
        if len(reasons) == len(problems):
            raise NotApplicable(str(reasons[0]))

    return checked


def _random(case: Case) -> list[Problem]:
    """Distinct rows with none labelled; and rows with copies, some labelled where the strategy reads labelled rows."""
    plain, copies = (problem_for(case.strategy, case.seed, copies=n, device=case.device) for n in (1, COPIES))
    try:
        return [plain, with_labelled(case.strategy, copies) if case.strategy.needs.labelled else copies]
    except NotApplicable:
        return [plain, copies]


def _compare(reference: Reference | None, problem: Problem | None) -> Check:
    """Compare with the picks of a reference, on the user's problem or on some random ones."""

    def checked(case: Case) -> None:
        if reference is None:
            raise NotApplicable(
                "there is no reference: pass reference= (--reference), a function or the name of a strategy"
            )
        problems = [problem] if problem is not None else [_small(case, turn) for turn in range(REFERENCE_TRIES)]
        for one in problems:
            found = reference(one.arrays, one.ids, one.k, one.seed)
            ids, weights = found if isinstance(found, tuple) else (found, None)
            got = case.select(one.k, one.arrays, one.ids, one.labelled, one.seed)
            expect_ids(got.ids, ids, "the reference given")
            if weights is not None:
                expect_close(got.weights, weights, "weights of the reference given", 1e-6, 1e-9)

    return checked


def _small(case: Case, turn: int) -> Problem:
    seed = Key(case.seed).fold("reference", turn).small()
    rng = case.rng("size", turn)
    n = int(rng.integers(10, 60))
    return replace(problem_for(case.strategy, seed, n, int(rng.integers(1, n)), device=case.device), seed=turn)


def _own_reference(strategy: Strategy) -> Reference | None:
    """The function `select` of a module `reference` next to that of the strategy, if there is one."""
    package = type(strategy).__module__.rpartition(".")[0]
    if not package or importlib.util.find_spec(f"{package}.reference") is None:
        return None
    found: Reference | None = getattr(importlib.import_module(f"{package}.reference"), "select", None)
    return found


def _check_device(device: str) -> None:
    if device not in ("cpu", "cuda"):
        raise ArgumentError(f"device is cpu or cuda, found {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ArgumentError("device is cuda, but torch finds no CUDA device; leave it out to check on the CPU")
