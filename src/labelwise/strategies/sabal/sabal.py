"""SABAL: a weighted batch whose expected loss stands for that of the whole pool, with a bonus for uncertain rows.

Shen, Jiang, Zhang and Koyejo, "Batch active learning from the perspective of sparse approximation", 2022, problem 2
and algorithms 1 (greedy), 2 (proximal iterative hard thresholding), 4 and 5. Weights w >= 0 on the n rows of the pool,
b of them above zero, minimise

    f(w) = |v - Phi w|^2 + beta |w - 1|^2 - alpha sum_j 1[w_j > 0] sigma_j^2
    v = (1/n) sum_j g_j      Phi = (1/b) [g_1 .. g_n]      sigma_j = (1/n) E_y |g_j(y) - g_j|      g_j = E_y g_j(y)

    gradient form   g_j(y) = (p - e_y) h^T, y ~ q_j the calibrated prediction, so g_j = (p_j - q_j) h_j^T and
                    sigma_j = |h_j|/n sum_y q_jy sqrt(1 - 2 q_jy + |q_j|^2)
                    with gradient="argmax" Phi is of those at the most probable class, g_j = (p_j - e_top) h_j^T
    Bayesian form   g_j(y)[i] = loss under draw i less its mean over draws, y ~ q_j the mean prediction of the draws

    greedy   argmin over rows not taken of tau grad f1_j - alpha sigma_j^2, a line search along it, one de-bias step
    IHT      s = z - mu grad f1(z); the b rows of largest [s_j]_+^2 / 2 + alpha sigma_j^2; de-bias; momentum

Cost: N C D for each sweep, see greedy.py and iht.py; nothing of size N x C D is built.
Departs from the paper: IHT keeps the rows that minimise its inner problem, where Appendix E forgets what a row left out
costs (prox="paper" is as printed); a batch always has b rows, also where clipping leaves fewer weights above zero: such
rows have weight 0; where every g_j is zero (q = p) the rows of largest sigma are taken, with weight 1; tau and the
number of iterations are not given there. A draw's probability below 1e-12 counts as 1e-12.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from labelwise.errors import ArgumentError
from labelwise.io.arguments import check_fields, check_flag, check_real, check_whole
from labelwise.registry import register
from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.selection.backends import Backend, choose
from labelwise.selection.strategy import Growth, Size
from labelwise.shards import Shard, Shards
from labelwise.signals.spec import Embedding, HeadGrad, LabelProbs, LogProbs, MeanGrad, Needs, Probs
from labelwise.strategies.sabal.backends import BACKENDS
from labelwise.strategies.sabal.greedy import ListTuning
from labelwise.strategies.sabal.iht import Stop, first_key
from labelwise.strategies.sabal.kernels.torch import rounded
from labelwise.strategies.sabal.problem import (
    Problem,
    Terms,
    alpha_of,
    gather,
    memory,
    parts_of,
    posed,
    residual,
    score_gradient,
    share,
    with_alpha,
)
from labelwise.strategies.sabal.vectors import Gradients, Losses, Vectors

# The paper's settings for CIFAR-10: alpha, beta. With VGG-16 (table 5), and with the Bayesian ResNet-18 (table 4).
DEFAULTS = {"greedy": (1e-2, 1e-1), "iht": (1e-8, 1e-6)}
BAYESIAN_DEFAULTS = {"greedy": (2.0, 1.0), "iht": (1.0, 1e-6)}
USUAL_ITERATIONS = 200  # of IHT: most selections stop before (docs/results/sabal-beta.md)
GRADIENT: dict[str, MeanGrad | HeadGrad] = {"expected": MeanGrad(), "argmax": HeadGrad()}
GRADIENTS = Needs(pool=(MeanGrad(),))
ARRAYS = frozenset({"probs", "label_probs", "embedding"})  # of the gradient form

IHT = {  # what is not as with the greedy solver
    "name": "sabal-iht",
    "picks": "a weighted batch whose loss stands for the pool's, by proximal iterative hard thresholding",
    "cost": "N C D x iterations",
    "growth": Growth(C=1, D=1),
}


@register
@dataclass(frozen=True)
class Sabal(Strategy):
    """A sparse approximation of the pool's expected loss.

    Args:
        solver: "greedy" or "iht".
        alpha: weight of the variance; 0 leaves bias alone. None is the paper's value for CIFAR-10, by solver and form,
            unless `variance_share` is set.
        variance_share: sets alpha so that the variance has this share of the score at w = 0, from 0 to below 1,
            whatever the scale of the embedding and the number of rows. Instead of `alpha`.
        beta: pull of the weights towards one. None is the paper's value for CIFAR-10, by solver and form.
        tau: step that the greedy score looks ahead. IHT does not use it.
        iterations, tolerance: IHT stops after `iterations`, or when w moves by less than this share of its length.
        prox: the rule of IHT's threshold, "exact" or "paper".
        sigma_scale: sigma is divided by the rows of the pool ("paper"), of the batch ("batch"), or not ("none").
        second_order: the greedy score counts the curvature of f1 as well. Not for IHT.
        form: "gradient" or "bayesian"; "auto" is gradient, or in `lw.select` what the given arrays allow.
        bias: False leaves variance alone: the rows of largest sigma.
        unit_weights: greedy without line search and de-bias, every weight one; close to the exact path for large beta.
            Not for IHT.
        draws: how many draws the Bayesian form asks of a model.
        gradient: "expected" has Phi of the gradients expected under `label_probs`, zero where those are `probs`;
            "argmax" of those at the most probable class, BADGE's vectors: what "gradient embedding" in the paper's
            experiments may mean. Not for the Bayesian form.

    Raises:
        ArgumentError: a parameter is unknown or out of range, or does not fit the solver or the form.
    """

    solver: Literal["greedy", "iht"] = "greedy"
    alpha: float | None = None
    beta: float | None = None
    tau: float = 1.0
    iterations: int = 1000
    tolerance: float = 1e-5
    prox: Literal["exact", "paper"] = "exact"
    sigma_scale: Literal["paper", "batch", "none"] = "paper"
    second_order: bool = False
    form: Literal["auto", "gradient", "bayesian"] = "auto"
    bias: bool = True
    unit_weights: bool = False
    draws: int = 100
    gradient: Literal["expected", "argmax"] = "expected"
    variance_share: float | None = None

    backends: ClassVar[Mapping[str, Sequence[Backend]]] = BACKENDS
    name = "sabal-greedy"
    variants: ClassVar = {"sabal-greedy": {"solver": "greedy"}, "sabal-iht": {"solver": "iht"}}
    picks = "a weighted batch whose loss stands for the pool's, greedily"
    reason = "With the rest of this batch it represents the whole pool."
    needs = GRADIENTS
    unset: ClassVar[tuple[str, ...]] = ()
    cost = "N C D x sweeps"
    growth = Growth(C=1, D=1, k=2)  # k steps of k weights
    paper = "Shen et al. 2022"
    weighted = True

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise ArgumentError(f"Sabal({name}=...) is one of {', '.join(known)}; found {getattr(self, name)!r}")
        self._check_share()
        self._set_defaults()
        check_fields(self, check_real, "alpha", "beta", "tau", "tolerance", least=0)
        check_fields(self, check_whole, "iterations", "draws", least=1)
        check_fields(self, check_flag, "second_order", "bias", "unit_weights")
        for name in ("second_order", "unit_weights"):
            if self.solver == "iht" and getattr(self, name):
                raise ArgumentError(
                    f'Sabal({name}=True) changes the greedy solver only; leave it out with solver="iht"'
                )
        if self.solver == "greedy" and self.bias and self.alpha == 0 and self.tau == 0:
            raise ArgumentError("Sabal(alpha=0, tau=0) leaves nothing to score rows by; one of them must be above 0")
        if self.solver == "iht":
            for name, fact in IHT.items():
                object.__setattr__(self, name, fact)
        if self.form == "bayesian" and self.gradient != "expected":
            raise ArgumentError('Sabal(gradient="argmax") is of the gradient form; leave it out with form="bayesian"')
        if self.gradient != "expected":
            object.__setattr__(self, "needs", Needs(pool=(HeadGrad(), LabelProbs())))
        if self.form == "bayesian":
            object.__setattr__(self, "needs", Needs(pool=(LogProbs(self.draws),)))

    def _check_share(self) -> None:
        """Raise ArgumentError where variance_share is no share, or where something else sets the variance."""
        if self.variance_share is None:
            return
        share = check_real("Sabal(variance_share=...)", self.variance_share, least=0)
        if share >= 1:
            raise ArgumentError(
                f"Sabal(variance_share=...) must be from 0 to below 1, found {share:g}; "
                "for variance alone set bias=False"
            )
        object.__setattr__(self, "variance_share", share)
        if self.alpha is not None:
            raise ArgumentError(
                f"Sabal(alpha={self.alpha!r}, variance_share={share:g}): both set the weight of the variance; set one"
            )
        if not self.bias:
            raise ArgumentError("Sabal(bias=False) leaves variance alone: leave variance_share out")
        if self.solver == "greedy" and self.tau == 0:
            raise ArgumentError("Sabal(tau=0) leaves variance alone: leave variance_share out, or set tau above 0")

    def _set_defaults(self) -> None:
        """alpha and beta, where they are None; `unset` remembers which: another form has others."""
        values = (BAYESIAN_DEFAULTS if self.form == "bayesian" else DEFAULTS)[self.solver]
        default = {name: value for name, value in zip(("alpha", "beta"), values) if getattr(self, name) is None}
        if self.variance_share is not None:
            del default["alpha"]  # it is found for each pool
        for name, value in default.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "unset", tuple(default))

    def given(self, arrays: frozenset[str]) -> Sabal:
        if self.form == "auto" and self.gradient == "expected" and "log_probs" in arrays and not arrays >= ARRAYS:
            alpha, beta = (None if name in self.unset else getattr(self, name) for name in ("alpha", "beta"))
            return dataclasses.replace(self, form="bayesian", alpha=alpha, beta=beta)
        return self

    def memory(self, size: Size) -> int:
        bayesian = self.form == "bayesian"
        a, b = (1, size.shape(LogProbs)[0]) if bayesian else (size.shape(Probs)[0], size.shape(Embedding)[0])
        return memory(size, a, b) + (b * size.number * size.rows if bayesian else 0)

    def work(self, size: Size) -> float:
        if self.form == "bayesian":
            return 0.0
        c, d = size.shape(Probs)[0], size.shape(Embedding)[0]
        if self.solver == "iht":
            return 4.0 * size.rows * c * d * min(self.iterations, USUAL_ITERATIONS)
        # Checks of all rows, then in float64, which counts twice, the picked rows and a list for each pick.
        return 2.0 * size.rows * size.k * (c + d) + 4.0 * size.k * (size.k + ListTuning.longest) * c * d

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        assert self.beta is not None, "set on creation"
        vectors: Vectors = Gradients(GRADIENT[self.gradient])
        if self.form == "bayesian":
            vectors = Losses(LogProbs(self.draws))
        scale = {"paper": 1 / pool.n, "batch": 1 / k, "none": 1.0}[self.sigma_scale]
        terms = Terms(self.alpha or 0.0, self.beta, self.tau, scale, self.second_order, self.unit_weights)
        with posed(pool, vectors, k, terms) as problem:
            if problem.flat or not self.bias:
                return self._most_uncertain(problem)
            if self.variance_share is not None:
                problem = with_alpha(problem, alpha_of(problem, self.variance_share, self._rest(problem)))
            solve = self._greedy if self.solver == "greedy" else self._iht
            return solve(problem, choose(self.backends[self.solver], problem))

    def _rest(self, problem: Problem) -> Callable[[Shard], Tensor]:
        """What the first score has of each row besides the variance."""
        return first_key(problem) if self.solver == "iht" else score_gradient(problem, -problem.v_AB)

    def _greedy(self, problem: Problem, backend: Any) -> Selection:
        found = backend.solve(problem)
        after = share(problem, score_gradient(problem, found.r_AB))
        notes = _notes(problem, found.ids, found.w, found.r_AB, (found.share, after))
        notes |= {"iterations": problem.k, "sweeps": found.sweeps, "stopped": "k rows taken"}
        return _selection(found.ids, found.w, found.scores, notes)

    def _iht(self, problem: Problem, backend: Any) -> Selection:
        found = backend.solve(problem, Stop(self.iterations, self.tolerance), self.prox)
        notes = _notes(problem, found.ids, found.w, found.r_AB, found.shares)
        notes |= {"iterations": found.iterations, "stopped": found.stopped}
        return _selection(found.ids, found.w, found.keys, notes)

    def _most_uncertain(self, problem: Problem) -> Selection:
        """The rows of largest sigma: all there is to go by where every g is zero."""
        best = problem.pool.best(lambda shard: rounded(shard.state["sigma"]), problem.k)
        ones = torch.ones(problem.k, dtype=torch.float64, device=problem.v_AB.device)
        r_AB = residual(problem, gather(problem, best.ids), ones)
        notes = _notes(problem, best.ids, ones, r_AB, (None, None))
        notes |= {"alpha": self.alpha, "iterations": 0, "stopped": "variance only"}
        if problem.flat:
            notes["note"] = f"the bias term is zero: {problem.flat}"
        return _selection(best.ids, ones, best.values**2, notes)


def _notes(
    problem: Problem, ids: Tensor, w: Tensor, r_AB: Tensor, shares: tuple[float | None, float | None]
) -> dict[str, Any]:
    """The objective with its parts, alpha, and the share of the variance in the score before and after."""
    named = zip(("share", "share_after"), shares)
    return {**parts_of(problem, ids, w, r_AB), "alpha": problem.terms.alpha, **dict(named)}


def _selection(ids: Tensor, w: Tensor, scores: Tensor, notes: dict[str, Any]) -> Selection:
    return Selection(ids.numpy(), w.cpu().numpy() + 0.0, scores.numpy(), notes)  # a weight of -0.0 is 0


CHOICES = {
    "solver": ("greedy", "iht"),
    "prox": ("exact", "paper"),
    "sigma_scale": ("paper", "batch", "none"),
    "form": ("auto", "gradient", "bayesian"),
    "gradient": ("expected", "argmax"),
}
