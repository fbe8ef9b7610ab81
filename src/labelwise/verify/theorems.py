"""Theorems of the papers, checked on small problems; each check belongs to the strategy of its paper."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.rng import Key
from labelwise.signals.rows import Factored
from labelwise.strategies.ally import reference as slow_ally
from labelwise.strategies.bayesian import reference as slow_bayes
from labelwise.strategies.bayesian.joint_entropy import Joint
from labelwise.strategies.distance.reference import sq_distances
from labelwise.strategies.dynamical import reference as slow_dynamical
from labelwise.strategies.leverage import reference as slow_barrier
from labelwise.strategies.leverage.barrier import Barrier
from labelwise.strategies.leverage.bss import ALWAYS_GOOD
from labelwise.strategies.sabal import reference as slow_sabal
from labelwise.strategies.sabal.kernels import torch as sabal
from labelwise.strategies.sabal.vectors import adjoint
from labelwise.theory.alignment import one_hot, theorem_1, theorem_2
from labelwise.theory.dynamics import Dynamics
from labelwise.train import PrimalDual
from labelwise.verify.case import Case, checks
from labelwise.verify.compare.sabal import inputs, vectors
from labelwise.verify.problems import expect, expect_close, expect_ids


@checks("kcenter", "cover within twice the best")
def cover_radius(case: Case) -> None:
    """k-center: the cover radius is at most twice the best of all sets of centres."""
    for turn in range(5):
        x = case.rng("cover", turn).normal(size=(9, 2))
        dist = np.sqrt(sq_distances(x, x))
        got = case.select(3, {"embedding": x}, seed=turn).ids
        best = min(dist[:, list(rows)].min(1).max() for rows in itertools.combinations(range(9), 3))
        found = dist[:, got].min(1).max()
        expect(found <= 2 * best + 1e-12, f"cover radius {found:.6g} is above twice the best one, {best:.6g}")


@checks("sabal-iht", "prox by brute force")
def prox(case: Case) -> None:
    """SABAL: the support taken by line 6 of algorithm 2 is optimal among all supports (rule "exact")."""
    for turn in range(40):
        rng = case.rng("prox", turn)
        arrays = inputs(rng, ("gradient", "bayesian")[turn % 2], 8)
        alpha, beta = float(10 ** rng.uniform(-1, 3)), 0.1
        got = case.select(
            3,
            arrays,
            strategy=case.with_parameters(
                {"alpha": alpha, "beta": beta, "iterations": 1, "prox": "exact", "variance_share": None}
            ),
        )
        problem = slow_sabal.Problem.of(*vectors(arrays), 3, alpha, beta)
        zero = np.zeros(8)
        u = problem.grad(zero)
        s = zero - problem.line_search(u, zero) * u
        value = slow_sabal.prox_value(problem, s, got.ids.tolist())
        best = slow_sabal.prox_by_brute_force(problem, s, 3)
        expect(value <= best + 1e-10 * (1 + abs(best)), f"the support reaches {value:.12g}, the best one {best:.12g}")


@checks("sabal-greedy", "line search")
@checks("sabal-iht", "line search")
def line_search(case: Case) -> None:
    """SABAL: no other step along the direction is better, and de-biasing never raises the objective."""
    for turn in range(20):
        rng = case.rng("line", turn)
        problem = slow_sabal.Problem.of(rng.normal(size=(9, 6)), rng.random(9), 4, 0.5, (0.0, 0.3)[turn % 2])
        w, u = rng.random(9) * (rng.random(9) < 0.6), rng.normal(size=9)
        case.record({"phi": problem.phi, "v": problem.v, "w": w, "u": u})
        phi = Factored(torch.ones(9, 1, dtype=torch.float64), torch.from_numpy(problem.phi.T.copy()))
        along = adjoint(phi, torch.from_numpy(u))
        residual = adjoint(phi, torch.from_numpy(w)) - torch.from_numpy(problem.v)[None]
        slope = (residual * along).sum() + problem.beta * float((w - 1) @ u)
        mu = float(sabal.line_search(slope, (along * along).sum() + problem.beta * float(u @ u)))
        others = [problem.f1(w - (mu + step) * u) for step in (-1.0, -0.1, -0.01, 0.01, 0.1, 1.0)]
        expect(problem.f1(w - mu * u) < min(others), f"a step near {mu:.6g} is better")
        support = sabal.ResidualSupport(phi, torch.from_numpy(w), residual, 1)
        direction, step = sabal.debias_step(support, problem.beta, 0.0)
        after = w - float(step) * direction.numpy()
        expect_close(after, problem.debias(w), "algorithm 5", 1e-10, 1e-12)
        expect(problem.f1(after) <= problem.f1(w) + 1e-12, "de-biasing raised the objective")


NORMS: dict[str, slow_sabal.Norm] = {
    "L2": lambda x: math.sqrt(float((x**2).mean())),
    "sup": lambda x: float(np.abs(x).max()),
    "L1": lambda x: float(np.abs(x).mean()),
}


@checks("sabal-greedy", "proposition C.1")
@checks("sabal-iht", "proposition C.1")
def shift_invariant_seminorm(case: Case) -> None:
    """SABAL: q, the infimum over constants c of |L + c|, is a seminorm that no constant changes, in three norms.

    In the Bayesian form the library has q in closed form, the length of the centred losses: it must be that infimum.
    """
    for turn in range(12):
        rng = case.rng("seminorm", turn)
        one, other = rng.normal(size=(2, 9)) * rng.lognormal(0, 2, size=(2, 1))
        factor, constant = (float(x) for x in rng.normal(size=2) * 3)
        case.record({"one": one, "other": other, "factor": np.array(factor), "constant": np.array(constant)})
        for name, norm in NORMS.items():
            q, near = functools.partial(slow_sabal.seminorm, norm=norm), 1e-9 * (norm(one) + norm(other))
            of_one = q(one)
            expect(q(one + other) <= of_one + q(other) + near, f"{name}: no triangle inequality")
            expect_close(q(factor * one), abs(factor) * of_one, f"{name}: absolute homogeneity", 1e-7)
            expect_close(q(one + constant), of_one, f"{name}: shift-invariance", 1e-7)
            expect(q(np.full(9, constant)) <= 1e-12 * abs(constant), f"{name}: a constant is not at distance 0")
            expect(of_one > 0, f"{name}: a loss that is no constant is at distance 0")
    for turn in range(4):
        arrays = inputs(case.rng("losses", turn), "bayesian", 12)
        strategy = case.with_parameters({"beta": 0.1, "alpha": 0.0, "variance_share": None, "bias": True})
        got = case.select(4, arrays, strategy=strategy)
        loss, w = -arrays["log_probs"], np.zeros(12)
        w[got.ids] = got.weights
        expected = (np.exp(arrays["log_probs"]).mean(1)[:, None] * loss).sum(2)  # (n, draws), not centred
        distance = slow_sabal.seminorm(expected.mean(0) - w @ expected / 4, NORMS["L2"])
        expect_close(got.notes["bias"] / loss.shape[1], distance**2, "q of the difference of the losses", 1e-7, 1e-12)


@checks("sabal-greedy", "proposition 3.1")
@checks("sabal-iht", "proposition 3.1")
def variance_bound(case: Case) -> None:
    """SABAL: with the labels of the batch known, the variance left is at most the sum of sigma over the rest.

    Every labelling is enumerated. With one row left out both sides are equal.
    """
    for turn, rows in enumerate((1, 2, 3, 1)):
        rng, form = case.rng("variance", turn), ("gradient", "bayesian")[turn % 2]
        arrays = inputs(rng, form, 4)
        if form == "gradient":
            g, q = slow_sabal.label_gradients(arrays["probs"], arrays["embedding"]), arrays["label_probs"]
        else:
            g, q = slow_sabal.label_losses(arrays["log_probs"]), np.exp(arrays["log_probs"]).mean(1)
        # With variance alone the scores of the library are sigma^2.
        alone = {"bias": False, "variance_share": None, "sigma_scale": "paper"}
        got = case.select(4, arrays, strategy=case.with_parameters(alone))
        sigma = np.empty(4)
        sigma[got.ids] = np.sqrt(got.scores)
        w, dropped = rng.lognormal(0, 1, 4), rng.permutation(4)[:rows]
        w[dropped] = 0
        whole, weighted = slow_sabal.variance_terms(g, q, w, rng.integers(0, q.shape[1], 4), 4 - rows)
        bound = float(sigma[dropped].sum())
        expect(whole + weighted <= bound * (1 + 1e-9), f"{whole + weighted:.9g} is above the bound {bound:.9g}")
        if rows == 1:
            expect_close(whole + weighted, bound, "the bound with one row left out", 1e-9)


def _network(case: Case, turn: int, rows: int = 7) -> tuple[nn.Module, Tensor, Tensor]:
    generator = Key(case.seed).fold("network", turn).generator()
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2)
    x = torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (rows,), generator=generator)
    case.record({"x": x.numpy(), "y": y.numpy()})
    return model, x, y


@checks("dynamical", "Delta identity")
def dynamics(case: Case) -> None:
    """dynamicAL: the definition by kernels (eq. 8), and Delta as a difference of dynamics with every pair of rows."""
    for turn in range(4):
        model, x, y = _network(case, turn)
        found = Dynamics(model, batch=3)
        expect_close(found.of(x, y), slow_dynamical.dynamics_by_kernels(model, x, y), "equation 8", 1e-9)
        before, after = found.of(x[:4], y[:4]), found.of(x, y)
        change = found.change((x[4:], y[4:]), (x[:4], y[:4]))
        expect_close(change, after - before, "the change of the dynamics", 1e-8)
        g, g_S = slow_dynamical.row_gradients(model, x, y), slow_dynamical.row_gradients(model, x[:4], y[:4]).sum(0)
        single = [float(g[i] @ g[i] + 2 * g[i] @ g_S) for i in range(4, 7)]
        expect_close(found.changes(x[4:], y[4:], found.gradient(x[:4], y[:4])), single, "the change by one row", 1e-8)
        pairs = sum(float(g[a] @ g[b]) for a, b in itertools.permutations(range(4, 7), 2))
        expect_close(change, sum(single) + pairs, "equation 13", 1e-8)


@checks("dynamical", "theorems 1 and 2")
def alignment_bounds(case: Case) -> None:
    """dynamicAL: theorem 1 (speed of training) and theorem 2 (generalisation) on random kernels."""
    for turn in range(30):
        rng = case.rng("alignment", turn)
        n, classes = int(rng.integers(2, 20)), int(rng.integers(1, 5))
        x = rng.normal(size=(n, 40)) * np.logspace(0, -2 * rng.random(), 40)
        theta, y = torch.from_numpy(x @ x.T), one_hot(torch.from_numpy(rng.integers(0, classes, n)), classes)
        case.record({"kernel": theta.numpy(), "labels": y.numpy()})
        eta = float(rng.uniform(0.01, 1.0)) / float(torch.linalg.eigvalsh(theta)[-1])
        for name, bounds in (("1", theorem_1(theta, y, eta, 1 + turn)), ("2", theorem_2(theta, y))):
            expect(bounds.holds, f"theorem {name} does not hold: {bounds}")


@checks("bss", "barriers and eigenvalues")
def barriers(case: Case) -> None:
    """BSS: the design stays between the barriers at every draw, and ends in the interval of the paper.

    The run ends when the next move would part the barriers too far, so the lower one is short of its last index by at
    most one move: that much is allowed. For gamma up to 0.1165 the output is good, with eigenvalues in [3/4, 5/4].
    """
    for turn, gamma in enumerate((0.1165, 0.3, 0.11, 0.5)):
        rng = case.rng("barriers", turn)
        v = slow_barrier.whitened(slow_barrier.features(slow_barrier.KINDS[turn], 40, int(rng.integers(1, 4)), rng))
        d = v.shape[1]
        case.record({"v": v, "gamma": np.array(gamma)})
        barrier, rows = Barrier(d, gamma), torch.from_numpy(v)
        while True:
            energy = barrier.energy()
            if barrier.is_ended(energy):
                break
            form = energy.forms(rows)
            law = (form / form.sum()).numpy()
            expect_close(law, form.numpy() / energy.phi / len(v), "the law sums to one", 1e-8)
            pick = int(rng.choice(len(v), p=law))
            barrier.add(energy, rows[pick : pick + 1], form[pick : pick + 1])
            lam = torch.linalg.eigvalsh(barrier.matrix)
            inside = barrier.lower < float(lam[0]) and float(lam[-1]) < barrier.upper
            expect(inside, f"eigenvalues {lam.tolist()} are not between {barrier.lower} and {barrier.upper}")
        low, high = (float(x) / barrier.mid for x in (lam[0], lam[-1]))
        move = gamma / (energy.phi * (1 + gamma)) / barrier.mid
        least, most = (1 - 2 * gamma) / (1 - gamma**2) - move, (1 + 2 * gamma) / (1 - gamma**2)
        expect(least <= low <= high <= most, f"eigenvalues [{low}, {high}] are outside of [{least}, {most}]")
        expect(barrier.total <= barrier.mid * (1 + 1e-12), "the coefficients beta sum to more than 1")
        if gamma <= ALWAYS_GOOD:
            expect(0.75 <= low <= high <= 1.25, f"gamma = {gamma}: eigenvalues [{low}, {high}] are not in [3/4, 5/4]")


@checks("batchbald", "joint entropies")
def joint_entropies(case: Case) -> None:
    """BatchBALD: gains from configurations are those of joint entropies with every labelling enumerated."""
    for turn in range(2):
        probs = np.exp(slow_bayes.random_log_probs(case.rng("joint", turn), 5, 5, 3))
        case.record({"probs": probs})
        joint = Joint.empty(5, torch.device("cpu"))
        for t in range(4):
            value = slow_bayes.batch_information(probs[:t]) if t else 0.0
            expected = [slow_bayes.batch_information(probs[[*range(t), i]]) - value for i in range(5)]
            expect_close(joint.gain(torch.from_numpy(probs)), expected, f"gain after {t} picks", 0.0, 1e-10)
            expect_close(joint.q_M.sum(), 1.0, "the chances of all labellings", 1e-12)
            expect(len(joint.q_M) == 3**t, f"{3**t} labellings of {t} rows, found {len(joint.q_M)}")
            joint = joint.with_row(torch.from_numpy(probs[t]), 1000, Key(turn))


@checks("ally", "recursion of duals")
def duals(case: Case) -> None:
    """ALLY: duals are eta times the running sum of slack, held at zero from below, whatever the batches."""
    for turn in range(4):
        rng = case.rng("duals", turn)
        losses = rng.exponential(0.5, (6, 5))
        epsilon, eta = float(rng.uniform(0, 0.6)), float(rng.uniform(0.05, 1))
        case.record({"losses": losses, "epsilon": epsilon, "eta": eta})
        objective = PrimalDual(epsilon=epsilon, eta=eta)
        state = objective.init(5, None)
        for seen, expected in zip(losses, slow_ally.duals(losses.tolist(), epsilon, eta)):
            for index in torch.from_numpy(rng.permutation(5)).split(2):
                state = objective.after(torch.from_numpy(seen)[index], index, state)
            expect_close(state["dual"], expected, "duals after an epoch", 0.0, 1e-12)


@checks("ally", "theorem 3.2")
def sensitivity(case: Case) -> None:
    """ALLY, theorem 3.2: duals at the optimum are what the optimal value loses when a bound is loosened."""
    rng = case.rng("sensitivity")
    x = np.array([1.0, -0.5, 2.0, 0.8]) * rng.uniform(0.99, 1.01, 4)
    y = np.array([1.0, 0.4, 0.5, -0.3]) * rng.uniform(0.99, 1.01, 4)
    case.record({"x": x, "y": y})
    objective = PrimalDual(epsilon=0.4, eta=0.5, update="full")
    state, weight, index = objective.init(4, None), torch.zeros(1, dtype=torch.float64), torch.arange(4)
    x_n, y_n = torch.from_numpy(x), torch.from_numpy(y)
    for _ in range(1500):
        # The gradient of mean (1 + dual) (x w - y)^2 + 0.1 w^2, which is the Lagrangian that `reduce` gives.
        slope = (2 * (1 + state["dual"]) * (x_n * weight - y_n) * x_n).mean() + 0.2 * weight
        weight = weight - 0.05 * slope
        state = objective.after((x_n * weight - y_n).square(), index, state)
    w = weight.clone().requires_grad_()
    loss = (x_n * w - y_n).square()
    (rest,) = torch.autograd.grad(objective.reduce(loss, index, state) + 0.1 * w.square().sum(), w)
    expect_close(rest, [0.0], "the gradient of the Lagrangian at rest", 0.0, 1e-5)
    slopes = []
    for i in range(4):
        step = 1e-6 * np.eye(4)[i]
        slopes.append((_optimum(x, y, 0.4 + step) - _optimum(x, y, 0.4 - step)) / 2e-6)
    # The Lagrangian is a mean over rows, so a dual counts 1/n of what its bound costs.
    expect_close(state["dual"] / 4, [-slope for slope in slopes], "duals against sensitivities", 0.0, 1e-4)
    expect(bool((state["dual"] > 1e-3).any()), "no bound is active: the check says nothing")


def _optimum(x: np.ndarray, y: np.ndarray, epsilon: np.ndarray) -> float:
    """min over w of mean (x w - y)^2 + 0.1 w^2, with (x_i w - y_i)^2 <= epsilon_i: an interval, so exact."""
    reach = np.sqrt(epsilon)
    low = np.max(np.where(x > 0, (y - reach) / x, (y + reach) / x))
    high = np.min(np.where(x > 0, (y + reach) / x, (y - reach) / x))
    w = min(max((x * y).mean() / ((x * x).mean() + 0.1), low), high)
    return float(((x * w - y) ** 2).mean() + 0.1 * w * w)


@checks("batchbald", "log K")
def saturated(case: Case) -> None:
    """BatchBALD: what labels tell about a draw of K is at most log K, and adding a row never takes information away."""
    for turn, draws in enumerate((2, 5)):
        log_probs = slow_bayes.random_log_probs(case.rng("saturated", turn), 12, draws, 3, 8.0)
        got = case.select(5, {"log_probs": log_probs}, strategy=case.with_parameters({"strict": True}))
        expect(got.notes["information"] <= math.log(draws) + 1e-9, f"information is above log {draws}")
        expect(bool((got.scores >= -1e-9).all()), "a pick took information away")
    expect_ids(got.ids, slow_bayes.batchbald(log_probs, 5)[0], "greedy by enumeration")
