"""The weighted test slice of projects with numbers, and the page's training with the weights of `bss`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from labelwise.errors import StoreError
from labelwise.pool import Pool
from labelwise.project import Project, Settings
from labelwise.project.loop.holdout import FILE, FUNCTIONS, Draws, draw_by_bss, reserve
from labelwise.project.loop.model import logistic, ridge
from labelwise.project.loop.rounds import finish_round, make_round
from labelwise.project.loop.snapshot import session_of, take_snapshot, training_weights
from labelwise.project.loop.stored_model import read_model
from labelwise.project.meter import mean_curve
from labelwise.project.meter.meter import score_of
from labelwise.project.predict.trained import HeldOutRows, _margin, train
from labelwise.project.settings import CHECKSUM
from labelwise.rng import Key
from labelwise.server.report import certificate_text, report_html


def heavy(n: int, d: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_t(2, size=(n, d)).astype(np.float32)


def test_the_first_draw_has_half_of_its_chance_by_leverage() -> None:
    x = heavy(200, 4)
    centred = np.hstack([np.ones((200, 1)), x - x.mean(0)])
    leverage = (np.linalg.svd(centred, full_matrices=False)[0] ** 2).sum(1) * 200 / 5  # its mean is 1
    for seed in range(5):
        found = draw_by_bss(Pool.of(x), seed)
        assert found.weights[0] == pytest.approx(2 / (1 + leverage[found.rows[0]]), rel=1e-4)
        assert len(found.reserve) == 100
        assert found.weights.max() <= 2


def test_weighted_means_of_the_draws_are_unbiased() -> None:
    x = heavy(80)
    f = (x.astype(np.float64) ** 2).sum(1)
    pool = Pool.of(x)
    means, ones = np.array(
        [
            ((d.weights * f[d.rows])[:-1].mean(), d.weights[:-1].mean())
            for d in (draw_by_bss(pool, s) for s in range(60))
        ]
    ).T
    assert means.mean() == pytest.approx(f.mean(), abs=4 * means.std() / math.sqrt(60))
    assert ones.mean() == pytest.approx(1, abs=4 * ones.std() / math.sqrt(60))


def test_draws_depend_on_the_seed_and_not_on_the_order_of_rows() -> None:
    x, order = heavy(60), np.random.default_rng(1).permutation(60)
    one, other = draw_by_bss(Pool.of(x), 3), draw_by_bss(Pool.of(x).subset(order), 3)
    assert one.rows.tolist() == other.rows.tolist()
    assert one.weights == pytest.approx(other.weights)
    assert draw_by_bss(Pool.of(x), 4).rows.tolist() != one.rows.tolist()


@pytest.mark.parametrize(
    "x", [np.zeros((40, 2)), np.ones((4, 1)), heavy(40)[:, :1] * np.ones((1, 50)), 1e30 * heavy(40), heavy(20, 60)]
)
def test_odd_features_have_a_slice(x: np.ndarray) -> None:
    found = draw_by_bss(Pool.of(x.astype(np.float32)), 0)
    assert len(found.reserve) == len(x) // 2
    assert (found.weights > 0).all()
    assert found.weights.max() <= 2


def test_the_weights_of_the_first_rows_are_those_of_the_draws_before_the_next_row() -> None:
    draws = Draws(np.array([5, 3, 5, 7, 3, 9]), np.array([1.0, 0.5, 0.25, 2.0, 1.5, 1.0]))
    assert draws.reserve.tolist() == [5, 3, 7, 9]
    found, factor = draws.weights_of([3, 5], 2)
    assert found.tolist() == [0.5, 1.25]
    assert factor == pytest.approx((1 + 0.0625 + 0.25) / (0.25 + 1.25**2))
    assert draws.weights_of([7], 4)[0].tolist() == [2.0]
    assert draws.weights_of([3, 5, 7], 3)[0].tolist() == [2.0, 1.25, 2.0]
    assert draws.weights_of([], 0)[0].tolist() == []


@pytest.mark.slow
def test_intervals_of_the_weighted_slice_cover_and_are_shorter() -> None:
    """A small version of benchmarks/estimate.py: 60 slices, of which 95 % less three deviations are 52."""
    hits, errors, uniform = 0, [], []
    for run in range(60):
        rng = np.random.default_rng(run)
        x = rng.normal(size=(1500, 3)) / np.sqrt(rng.chisquare(3, size=(1500, 1)) / 3)
        loss = (rng.normal(size=1500) * np.sqrt((x**2).sum(1))) ** 2
        draws = draw_by_bss(Pool.of(x.astype(np.float32)), run)
        rows = draws.reserve[:100]
        found = score_of(loss[rows], "rmse", *draws.weights_of(rows.tolist(), 100))
        true = math.sqrt(loss.mean())
        hits += found.low <= true <= (found.high or math.inf)
        errors.append(found.value / true - 1)
        uniform.append(math.sqrt(loss[reserve(np.arange(1500), run, 0.15)[:100]].mean()) / true - 1)
    assert hits >= 52
    assert np.square(errors).mean() < 0.5 * np.square(uniform).mean()


def test_thinned_by_the_largest_weight_all_rows_are_trained_on() -> None:
    x = torch.from_numpy(heavy(60))
    y = x.numpy()[:, 0] + np.random.default_rng(0).normal(size=60)
    plain = mean_curve.random_curve(x, y, 0, Key(0))
    same = mean_curve.random_curve(x, y, 0, Key(0), np.full(60, mean_curve.MOST_WEIGHT))
    assert same.sizes_S.tolist() == plain.sizes_S.tolist()
    assert same.loss_SM == pytest.approx(plain.loss_SM)
    half = mean_curve.random_curve(x, y, 0, Key(0), np.full(60, mean_curve.MOST_WEIGHT / 2))
    assert half.sizes_S[-1] == plain.sizes_S[-1] // 2
    assert np.isfinite(half.loss_SM).all()


def test_the_margin_of_equal_weights_is_that_of_split_conformal_prediction() -> None:
    off = np.random.default_rng(0).exponential(size=30)
    rows = HeldOutRows(np.arange(30), off[:, None], np.zeros(30), np.empty((0, 1)), np.empty(0))
    assert _margin(rows, None) == _margin(rows, np.ones(30)) == np.sort(off)[math.ceil(0.9 * 31) - 1]
    assert _margin(rows, np.where(off > np.median(off), 2.0, 0.5)) > np.sort(off)[math.ceil(0.9 * 31) - 1]  # type: ignore[operator]
    few = HeldOutRows(np.arange(8), off[:8, None], np.zeros(8), np.empty((0, 1)), np.empty(0))
    assert _margin(few, np.ones(8)) is None


# --- in a project ----------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    x = heavy(160)
    lines = ["a,b,c", *(",".join(map(str, row)) for row in x.tolist())]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    settings = Settings("rows", "table", "../rows.csv", "regress", columns=("a", "b", "c"), recipe="bss", k=14)
    with contextlib.closing(Project.create(tmp_path / "project", settings)) as made:
        yield made


def label_round(project: Project, number: int) -> None:
    assert make_round(project, number, project.store.last_seq())
    while (task := project.store.next_task("ann")) is not None:
        value = project.view(task.row).fields
        assert value is not None
        project.store.answer(task.token, "ann", "label", value[0][1], 1.0)


def test_a_project_with_numbers_has_a_weighted_slice_that_stays(project: Project) -> None:
    assert project.settings.test_draws == "bss"
    draws = Draws.read(project.folder)
    assert project.reserve.tolist() == draws.reserve.tolist()
    assert FUNCTIONS == 16
    for number in (1, 2, 3):
        label_round(project, number)
    finish_round(project, 3, project.store.last_seq())
    snapshot = take_snapshot(project.store, project.settings, project.reserve, project.store.last_seq())
    assert list(snapshot.test) == sorted(project.reserve[: snapshot.tested].tolist())
    weight_M, factor = project.test_weights(snapshot)
    assert weight_M is not None
    assert weight_M.tolist() == draws.weights_of(list(snapshot.test), snapshot.tested)[0].tolist()
    assert len(set(weight_M.tolist())) > 1
    assert factor <= 1
    meter = project.meter()
    assert meter is not None
    assert meter.score is not None
    assert train(project)[0].score["value"] == pytest.approx(meter.score.value, rel=1e-4)
    with contextlib.closing(Project.open(project.folder)) as again:
        assert again.reserve.tolist() == project.reserve.tolist()
    (project.folder / FILE).unlink()
    with pytest.raises(StoreError, match=FILE):
        Project.open(project.folder)


def test_a_project_of_an_older_version_has_the_slice_it_had(project: Project) -> None:
    path = project.folder / "project.yaml"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if not line.startswith(("test_draws", CHECKSUM))) + "\n")
    (project.folder / FILE).unlink()
    with contextlib.closing(Project.open(project.folder)) as old:
        assert old.settings.test_draws == "uniform"
        assert old.test_weights(take_snapshot(old.store, old.settings, old.reserve, 0)) == (None, 1.0)
        assert old.reserve.tolist() == reserve(old.pool.ids.numpy(), old.settings.seed, 0.15).tolist()


def test_the_page_trains_with_the_joint_weights_of_bss(project: Project) -> None:
    for number in (1, 2, 3, 4):
        label_round(project, number)
    snapshot = take_snapshot(project.store, project.settings, project.reserve, project.store.last_seq())
    session = session_of(project.pool, project.settings, project.reserve, snapshot)
    picks = {pick.row: pick for n in (1, 2, 3, 4) for pick in project.store.picks(n) if pick.slice == "chosen"}
    assert session.ledger.round_of == {row: n for n in (1, 2, 3, 4) for row in snapshot.train if row in {
        pick.row for pick in project.store.picks(n)
    }}  # fmt: skip
    given = dict(zip(session.ledger.labelled.tolist(), session.ledger.weights.tolist()))
    assert given == {row: pick.why.get("weight", 1.0) for row, pick in picks.items()}
    assert len(set(given.values())) > 10
    joint = dict(zip(session.ledger.labelled.tolist(), session.ledger.joint_weights(len(session.pool)).tolist()))
    weight_N = torch.tensor([joint[row] for row in snapshot.train], dtype=torch.float64)
    x_ND = project.pool.inputs(list(snapshot.train)).double()
    y_N = torch.tensor(list(snapshot.train.values()), dtype=torch.float64)
    expected, _ = ridge(x_ND, y_N, weight_N / weight_N.mean())
    assert session.fit().model.weight.detach().numpy() == pytest.approx(expected.float().numpy(), rel=1e-4)
    assert session.estimate is not None  # every round was drawn by a known law
    assert session.estimate["labels"] == len(snapshot.train)
    assert train(project)[0].weight_CD == pytest.approx(expected.numpy(), rel=1e-6)
    assert make_round(project, 5, project.store.last_seq())
    last = read_model(project.folder / "rounds" / "005")
    assert last is not None
    assert last.weight_CD == pytest.approx(expected.float().numpy(), rel=1e-4)
    notes = [one.notes for one in project.store.rounds()]
    assert notes[1]["law"]["rows"] == sum(pick.slice == "chosen" for pick in project.store.picks(2))
    assert "nearly uniform" in notes[1]["draw_warning"]  # few functions: the report says it
    assert "design" not in notes[0]  # the first batch is uniform
    asked = session.ask(notes[4]["law"]["rows"]).notes
    assert notes[4]["design"]["eigenvalues"] == pytest.approx(asked["eigenvalues"])
    low, high = notes[4]["design"]["eigenvalues"]
    assert f"{low:.2f} to {high:.2f} times" in report_html(project)


@pytest.mark.slow
@pytest.mark.parametrize(
    "recipe", ["kcenter | weigh sabal | certify basis", "kcenter | weigh density", "bss | weigh law"]
)
def test_the_page_trains_with_the_weights_of_a_recipe_and_says_what_labels_see(tmp_path: Path, recipe: str) -> None:
    x = heavy(160)
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,c", *(",".join(map(str, row)) for row in x.tolist())]) + "\n")
    settings = Settings("rows", "table", "../rows.csv", "regress", columns=("a", "b", "c"), recipe=recipe, k=14)
    with contextlib.closing(Project.create(tmp_path / "project", settings)) as project:
        for number in (1, 2, 3):
            label_round(project, number)
        snapshot = take_snapshot(project.store, project.settings, project.reserve, project.store.last_seq())
        session = session_of(project.pool, project.settings, project.reserve, snapshot)
        weight_N = training_weights(session, list(snapshot.train))
        assert weight_N is not None
        assert weight_N.std() > 0
        x_ND = project.pool.inputs(list(snapshot.train)).double()
        y_N = torch.tensor(list(snapshot.train.values()), dtype=torch.float64)
        expected, _ = ridge(x_ND, y_N, weight_N)
        assert session.fit().model.weight.detach().numpy() == pytest.approx(expected.float().numpy(), rel=1e-4)
        notes = project.store.rounds()[-1].notes
        assert certificate_text(project.store.rounds()) == notes.get("certificate", {}).get("sentence", "")
        if "certify" in recipe:
            assert notes["certificate"]["sentence"] == "Your labels see 100 % of what varies in the pool."
            assert notes["certificate"]["labels"] == notes["labels"]
            assert notes["certificate"]["sentence"] in report_html(project)
        else:
            assert "certificate" not in notes


def test_row_weights_are_copies_of_rows() -> None:
    x, y = torch.from_numpy(heavy(12)).double(), torch.arange(12.0).double() % 5
    count = torch.tensor([1, 2] * 6)
    twice, labels = x.repeat_interleave(count, 0), y.repeat_interleave(count)
    share = count.double() / count.double().mean()
    one, bias = logistic(x, (y > 2).long(), 2, share * 1.5)
    other, off = logistic(twice, (labels > 2).long(), 2)
    assert one.numpy() == pytest.approx(other.numpy(), abs=2e-3)
    assert bias.numpy() == pytest.approx(off.numpy(), abs=2e-3)
    line, _ = ridge(x, 3 * x[:, 0] + 1, share)
    assert line[0].numpy() == pytest.approx([3, 0, 0], abs=0.01)
