"""The meter: intervals that hold the truth, "too early" when it is, and a reason to stop; suspects and pictures."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from labelwise.errors import SourceError, StoreError
from labelwise.project import Project, Settings
from labelwise.project.data.pictures import encoded
from labelwise.project.loop import suspects
from labelwise.project.loop.worker import run
from labelwise.project.meter import mean_curve, sentences
from labelwise.project.meter.meter import (
    MIN_PER_CLASS,
    MIN_TEST_ROWS,
    History,
    Span,
    compute,
    losses_of,
    measure,
    read_meter,
)
from labelwise.project.meter.sentences import figures, headline, outlook, saving
from labelwise.rng import Key


def population(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Two classes that a line parts, with 5 % wrong labels."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 12)) / np.sqrt(12)
    y = (x @ np.random.default_rng(99).standard_normal(12) > 0).astype(int)
    return x, np.where(rng.random(n) < 0.05, 1 - y, y)


def history(m: int, losses: list[np.ndarray] | None = None, seed: int = 0, free: int = 1000) -> History:
    x, y = population(m, seed)
    given = losses or [(np.random.default_rng(seed).random(m) < 0.1).astype(float)]
    return History(
        rows=np.arange(m),
        x_MD=torch.from_numpy(x).float(),
        label_M=y.astype(float),
        classes=("a", "b"),
        labels_R=[20 * (r + 1) for r in range(len(given))],
        losses_RM=given,
        seconds=6.0,
        free=free,
    )


def test_below_twenty_test_rows_there_is_a_countdown_and_no_number() -> None:
    made = compute(history(6), 20, 1000, 2, 7, Key(0))
    shown = figures(made)
    assert shown[0].name == "Accuracy"
    assert shown[0].value == "after about 70 more answers"  # 14 test rows are missing; 6 of 26 answers were test rows
    assert "6 of 20" in shown[0].detail
    assert not [one for one in shown if "%" in one.value]
    assert headline(made, 20) == "20 labels so far; the accuracy is shown after about 70 more answers"
    assert not [word for word in made.words if "%" in word.replace(outlook(), "")]
    told = figures(compute(history(20), 20, 1000, 2, 7, Key(0)))
    assert "%" in told[0].value


def test_the_baseline_and_the_classes_are_named() -> None:
    some = history(40)
    made = compute(dataclasses.replace(some, expected=0.87), 20, 1000, 3, 7, Key(0))
    count = np.bincount(some.label_M.astype(int))
    assert made.baseline == count.max() / 40
    assert [one.value for one in figures(made) if one.name == "Always the commonest class"] == [
        f"{100 * count.max() / 40:.1f} %"
    ]
    assert [one.value for one in figures(made) if one.name == "Estimate from all labels"] == ["87 %"]
    assert sum(rows for _, rows, _ in made.by_class) == 40
    right = sum(rows * share for _, rows, share in made.by_class)
    assert right == pytest.approx(40 - some.losses_RM[-1].sum())
    y = np.array([1.0, 2.0, 3.0, 6.0] * 6)
    numbers = dataclasses.replace(history(24), classes=(), label_M=y)
    assert compute(numbers, 20, 1000, 3, 7, Key(0)).baseline == pytest.approx(y.std())
    many = dataclasses.replace(history(40), classes=tuple(map(str, range(77))))
    of_many = compute(many, 20, 1000, 3, 7, Key(0))
    assert of_many.least == 4 * 77
    assert len(of_many.by_class) == 2
    assert "what was saved can be estimated after" in headline(of_many, 20)


def test_few_test_rows_are_too_early() -> None:
    assert MIN_TEST_ROWS == 30
    assert MIN_PER_CLASS * 2 < MIN_TEST_ROWS
    made = compute(history(29), 20, 1000, 3, 7, Key(0))
    assert made.needed is None
    assert made.saved is None
    assert "29 test items have a label; at least 30" in made.early
    assert any(word.startswith("What was saved can be estimated after about") for word in made.words)
    assert made.score is not None
    assert made.score.low < made.score.value < (made.score.high or 1)
    none = compute(history(0, [np.empty(0)]), 20, 1000, 1, 7, Key(0))
    assert none.score is None
    assert "not known yet" in none.words[0]


def test_the_interval_of_the_accuracy_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(400):
        loss = (rng.random(40) < 0.08).astype(float)
        score = compute(history(28, [loss[:28]]), 20, 1000, 1, 1, Key(0)).score
        assert score is not None
        covered += score.low <= 0.92 <= (score.high or 1)
    assert covered >= 0.92 * 400  # 95 % less three standard deviations


@pytest.mark.slow
def test_the_interval_of_the_rmse_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(6)
    covered = 0
    for _ in range(300):
        found = History(
            np.arange(28), torch.zeros(28, 2), np.zeros(28), (), [20], [rng.standard_normal(28) ** 2 * 9], None, 9
        )
        score = compute(found, 20, 1000, 1, 1, Key(0)).score
        assert score is not None
        covered += score.low <= 3.0 <= (score.high or np.inf)
    assert covered >= 0.90 * 300


@pytest.mark.slow
def test_random_labels_measured_on_the_slice_are_random_labels() -> None:
    """The measured curve against many independent draws of as many labels."""
    x, y = population(120, 3)
    found = mean_curve.random_curve(torch.from_numpy(x), y, 2, Key(1))
    assert found.loss_SM.shape == (len(found.sizes_S), 120)
    assert np.isfinite(found.loss_SM).all()
    from labelwise.project.loop.model import logistic

    fresh, truth = population(4000, 1234)
    for s in (0, len(found.sizes_S) - 1):
        n = int(found.sizes_S[s])
        errors = []
        for draw in range(20):
            a, b = population(n, 500 + draw)
            weight, bias = logistic(torch.from_numpy(a), torch.from_numpy(b), 2)
            errors.append(float(((torch.from_numpy(fresh) @ weight.T + bias).argmax(1).numpy() != truth).mean()))
        # 120 test rows: the standard deviation of an error of 0.2 is 0.037
        assert found.loss_SM[s].mean() == pytest.approx(np.mean(errors), abs=0.12)


def test_a_known_law_is_continued() -> None:
    sizes = np.array([10, 16, 25, 40, 63, 100])
    loss_SM = np.repeat((0.05 + 1.5 * sizes**-0.8)[:, None], 400, axis=1)
    drawn = mean_curve.curves(sizes, loss_SM, mean_curve.weights(np.ones(400), Key(0)), 0.0, Key(0))
    assert drawn.loss_at(400)[0] == pytest.approx(0.05 + 1.5 * 400**-0.8, abs=0.01)
    assert drawn.loss_at(20)[0] == pytest.approx(0.05 + 1.5 * 20**-0.8, abs=0.02)
    assert drawn.labels_at(np.full(600, 0.05 + 1.5 * 300**-0.8), 1e6)[0] == pytest.approx(300, rel=0.4)
    assert drawn.labels_at(np.full(600, 0.05 + 1.5 * 30**-0.8), 1e6)[0] == pytest.approx(30, rel=0.1)
    assert drawn.labels_at(np.full(600, 0.0), 5000.0)[0] == 5000


@pytest.mark.slow
def test_labels_needed_hold_the_truth_at_all_times() -> None:
    """Losses drawn from a known curve, no model: rows differ in how hard they are, and models share them."""
    left, lows, truth = 0, [], 200
    for seed in range(40):
        rng, covers = np.random.default_rng(seed), True
        hard, own = rng.random(240), rng.random(240)
        for m in (30, 45, 60, 90, 120, 180, 240):
            sizes = np.unique(np.geomspace(10, 5 * m // 6, 6).round().astype(int))
            edge = 1.2 * sizes**-0.4  # P(U/2 + V/2 < e) = 2 e^2 for e < 1/2: a power law with exponent 0.8
            loss = (rng.random((4, 6, m)) / 2 + hard[:m] / 2 < edge[None, :, None]).mean(0)
            active = (own[:m] / 2 + hard[:m] / 2 < 1.2 * truth**-0.4).astype(float)
            w = mean_curve.weights(np.ones(m), Key(seed))
            drawn = mean_curve.curves(sizes, loss, w, 0.05, Key(seed).fold("x", m))
            low, high = drawn.labels_between(w @ active, 10_000.0, m, 0.0)
            covers = covers and low <= truth <= high
        left += not covers
        lows.append(low)
    assert left <= 2
    assert np.median(lows) > 50  # and not because it says nothing


def test_the_boundary_that_holds_at_all_times_is_left_by_one_in_twenty() -> None:
    """Sums of normal numbers, looked at after each of 30 to 3,000 of them."""
    rng, times = np.random.default_rng(0), np.arange(30, 3001)
    far = [(np.abs(rng.standard_normal((100, 3000)).cumsum(1)[:, 29:]) / np.sqrt(times)).max(1) for _ in range(20)]
    left = np.mean(np.concatenate(far) > mean_curve.ALWAYS)
    assert 0.02 < left < 0.05
    assert np.mean(np.concatenate(far) > 1.96) > 0.4  # an interval for one time is left by most


def test_a_model_without_an_error_on_few_rows_has_a_wide_interval() -> None:
    sizes = np.array([10, 16, 25])
    loss_SM = np.repeat(np.array([0.3, 0.25, 0.2])[:, None], 30, axis=1)
    w = mean_curve.weights(np.ones(30), Key(0))
    drawn = mean_curve.curves(sizes, loss_SM, w, 0.0, Key(0))
    assert drawn.labels_between(np.zeros(600), 1e4, 30, 0.0)[0] < 40
    assert drawn.labels_between(np.zeros(600), 1e4, 3000, 0.0)[0] > 200


def test_a_curve_that_rises_by_chance_is_made_to_fall() -> None:
    found = mean_curve._falling(np.array([0.5, 0.3, 0.4, 0.2, 0.1, 0.15]))
    assert found.tolist() == pytest.approx([0.5, 0.35, 0.35, 0.2, 0.125, 0.125])


@pytest.mark.slow
def test_a_model_far_better_than_random_saves_and_one_far_worse_costs() -> None:
    given = history(200, [np.zeros(200)])
    given.labels_R[0] = 100
    better = compute(given, 20, 1000, 9, 1, Key(0))
    assert better.needed is not None
    assert better.needed.low > 110
    assert better.saved is not None
    assert better.saved.low > 0
    assert better.hours is not None
    assert better.hours.low == pytest.approx(better.saved.low * 6 / 3600)
    assert "Saved: " in " ".join(better.words)
    assert better.beyond
    worse = history(200, [(np.arange(200) % 2).astype(float)])
    worse.labels_R[0] = 500
    said = compute(worse, 20, 1000, 9, 1, Key(0))
    assert said.saved is not None
    assert said.saved.high is not None
    assert said.saved.high < 0
    assert "cost labels" in " ".join(said.words)


@pytest.mark.slow
def test_a_flat_curve_says_stop_and_a_steep_one_goes_on() -> None:
    rng = np.random.default_rng(0)
    same = (rng.random(300) < 0.05).astype(float)
    flat = compute(history(300, [same] * 10), 20, 5000, 10, 1, Key(0))
    assert flat.stop
    assert "less than 0.5 points" in flat.stop_reason
    assert flat.gain is not None
    hard = rng.random(300)
    steep = compute(
        history(300, [(hard < 2 / np.sqrt(20 * (r + 1))).astype(float) for r in range(10)]), 20, 5000, 10, 1, Key(0)
    )
    assert not steep.stop
    assert steep.gain is not None
    # 2/sqrt(200) - 2/sqrt(220) is 0.66 points
    assert steep.gain.low < 0.0066 < (steep.gain.high or 1)
    assert compute(history(40, free=0), 20, 60, 3, 1, Key(0)).stop


@pytest.mark.slow
def test_the_meter_is_kept_and_comes_back(tmp_path: Path) -> None:
    assert read_meter(tmp_path) is None
    settings = Settings(name="x", kind="table", source=".")
    made = measure(tmp_path, history(40), settings, 1000, 2, 5)
    assert read_meter(tmp_path) == made
    assert measure(tmp_path, history(40), settings, 1000, 2, 5) == made  # the same again
    (tmp_path / "meter.json").write_text("{}")
    with pytest.raises(StoreError, match="cannot be read"):
        read_meter(tmp_path)


def test_losses_by_the_names_of_the_classes() -> None:
    x, weight, bias = np.eye(2), np.array([[1.0, 0.0], [0.0, 1.0]]), np.zeros(2)
    assert losses_of(x, np.array([0.0, 1.0]), ("a", "b"), weight, bias, ("a", "b")).tolist() == [0, 0]
    assert losses_of(x, np.array([0.0, 2.0]), ("a", "b", "new"), weight, bias, ("a", "b")).tolist() == [0, 1]
    assert losses_of(x, np.array([0.5, 1.0]), (), np.array([[1.0, 3.0]]), np.zeros(1), ()).tolist() == [0.25, 4.0]


# --- suspects --------------------------------------------------------------------------------------------------------


def test_wrong_labels_are_found_first() -> None:
    x, _ = population(200, 8)
    clean = (x @ np.random.default_rng(99).standard_normal(12) > 0).astype(int)
    sure = np.argsort(-np.abs(x @ np.random.default_rng(99).standard_normal(12)))[:40]
    wrong = set((sure[::5] * 10).tolist())
    labels = np.where(np.isin(np.arange(200) * 10, list(wrong)), 1 - clean, clean)
    found = suspects.find(list(np.arange(200) * 10), torch.from_numpy(x), labels.tolist(), ("no", "yes"), Key(0))
    assert len(wrong & {one.row for one in found[: len(wrong)]}) >= len(wrong) - 1
    assert all(one.label != one.predicted for one in found)
    assert suspects.find([1, 2], torch.from_numpy(x[:2]), [0, 1], ("no", "yes"), Key(0)) == []


@pytest.mark.slow
def test_few_labels_are_suspected_and_most_of_them_are_wrong() -> None:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x = (x - x.mean(0)) / np.sqrt(((x - x.mean(0)) ** 2).sum(1).mean())
    names, hits, flagged, clean = tuple("0123456789"), 0, 0, 0
    for seed in range(3):
        rng = np.random.default_rng(seed)
        rows = rng.permutation(len(y))[:250]
        wrong = set(rows[:20].tolist())
        noisy = [int((y[row] + rng.integers(1, 10)) % 10) if row in wrong else int(y[row]) for row in rows]
        rows_x = torch.from_numpy(x[rows])
        found = suspects.find(rows.tolist(), rows_x, noisy, names, Key(seed))
        hits += sum(one.row in wrong for one in found)
        flagged += len(found)
        assert all(one.confidence > 0.5 for one in found)
        clean += len(suspects.find(rows.tolist(), rows_x, y[rows].tolist(), names, Key(seed)))
    assert hits >= 0.6 * 60
    assert hits >= 0.7 * flagged
    assert clean < 0.03 * 750


def test_a_model_that_knows_nothing_suspects_nobody() -> None:
    rng = np.random.default_rng(0)
    x, y = torch.from_numpy(rng.standard_normal((200, 5))), rng.integers(0, 4, 200)
    assert len(suspects.find(list(range(200)), x, y.tolist(), tuple("abcd"), Key(0))) <= 2


def test_wrong_numbers_are_found_first() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((100, 4))
    y = x @ np.array([1.0, 2.0, 0.0, -1.0]) + 0.1 * rng.standard_normal(100)
    y[17] += 30
    found = suspects.find(list(range(100)), torch.from_numpy(x), y.tolist(), (), Key(0))
    assert found[0].row == 17


# --- pictures and the rest of the page's needs -----------------------------------------------------------------------


def test_pictures_are_encoded_anew_small_and_upright(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    exif[0x010E] = "secret place"
    Image.fromarray(np.zeros((200, 400, 3), np.uint8)).save(path, exif=exif)
    made = encoded(path, 100)
    assert b"secret" in path.read_bytes()
    assert b"secret" not in made
    opened = Image.open(io.BytesIO(made))
    assert opened.size == (50, 100)
    assert Image.open(io.BytesIO(encoded(path, 1000))).size == (200, 400)  # never larger than it is


def test_a_folder_of_images_from_end_to_end(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    rng = np.random.default_rng(0)
    for n in range(30):
        value = np.clip(rng.normal(60 + 130 * (n % 2), 20, (16, 16)), 0, 255).astype(np.uint8)
        Image.fromarray(value).save(photos / f"é {n:02d}.png")
    (photos / "broken.png").write_bytes(b"nothing")
    told = []
    settings = Settings(name="p", kind="image", source="../photos", classes=("dark", "light"), k=8, encoder="pixels")
    with contextlib.closing(
        Project.create(tmp_path / "p", settings, lambda text, done, total: told.append(text))
    ) as project:
        assert "computing features (pixels)" in told
        assert len(project.pool) == 30
        assert project.excluded == ["broken.png: not an image that can be read"]
        row = project.store.items()[4].row
        assert project.view(row).image
        assert project.view(row).title.startswith("é ")
        assert Image.open(io.BytesIO(project.image(row, 64))).size == (16, 16)
        with pytest.raises(SourceError, match="not in the project"):
            project.image(0, 64)  # the broken one
        with pytest.raises(SourceError, match="not in the project"):
            project.view(10**6)
        assert project.neighbours(row) == []
        for item in project.store.items()[5:25]:
            number = int(item.ref.split()[1][:2])
            project.store.change("ann", item.row, "label", "light" if number % 2 else "dark", f"t{item.row}")
        near = project.neighbours(row, 3)
        own = "light" if int(project.view(row).title.split()[1][:2]) % 2 else "dark"
        assert [one.label for one in near] == [own] * 3
        assert near[0].similarity >= near[1].similarity
        began = time.process_time()
        project.neighbours(row, 3)
        assert time.process_time() - began < 0.02
    with pytest.raises(StoreError, match="already is a project"):
        Project.create(tmp_path / "p", settings)
    (photos / "é 07.png").unlink()
    (photos / "é 08.png").write_bytes(b"other")
    (photos / "new.png").write_bytes((photos / "é 09.png").read_bytes())
    with contextlib.closing(Project.open(tmp_path / "p")) as project:
        assert len(project.warnings) == 2
        assert "é 07.png" in project.warnings[0]
        gone = next(item.row for item in project.store.items() if item.ref == "é 07.png")
        with pytest.raises(SourceError, match="the file is missing"):
            project.image(gone, 64)
        assert project.view(gone).title == "é 07.png"
        assert not [item for item in project.store.items() if item.ref == "new.png"]
    os.rename(photos, tmp_path / "moved")
    with pytest.raises(SourceError, match="is missing"):
        Project.open(tmp_path / "p")


def test_making_a_project_goes_on_where_it_was_broken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.csv").write_text("body\n" + "".join(f"word{n} and word{n % 5}\n" for n in range(20)))
    settings = Settings(name="t", kind="text", source="../t.csv", text="body", classes=("a", "b"), encoder="words")
    with monkeypatch.context() as patched:
        patched.setattr(Settings, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            Project.create(tmp_path / "p", settings)
    assert (tmp_path / "p" / "store.db").is_file()
    with contextlib.closing(Project.create(tmp_path / "p", settings)) as project:
        assert len(project.store.items()) == 20
        assert project.store.classes() == ["a", "b"]
        assert project.view(3).text == "word3 and word3"
        assert "encoders" in project.feature_info.better


def test_right_labels_of_rare_classes_are_not_suspected() -> None:
    """Forty classes with two or three labels each, all right: no model knows these classes."""
    rng = np.random.default_rng(0)
    centre = rng.standard_normal((40, 30))
    label = np.arange(100) % 40
    x = torch.from_numpy(centre[label] + 1.5 * rng.standard_normal((100, 30))) / 6
    names = tuple(f"class {number}" for number in range(40))
    assert suspects.find(range(100), x, label.tolist(), names, Key(0)) == []


def test_by_all_labels_is_told_before_the_test_slice_is() -> None:
    given = dataclasses.replace(history(6), running=Span(0.7, 0.6, 0.8))
    made = compute(given, 20, 1000, 2, 7, Key(0))
    assert headline(made, 26).startswith("70 % accuracy with 20 labels")
    named = {one.name: one for one in figures(made)}
    assert named["Accuracy"].value == "after about 70 more answers"
    assert named["Estimate from all labels"].value == "70.0 %"
    assert "60.0 to 80.0 %" in named["Estimate from all labels"].detail
    assert "By all labels: 70.0 % (60.0 to 80.0 %)." in made.words


def test_the_meter_of_numbers_has_the_estimate_from_all_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((400, 4))
    y = x @ [3.0, 1.0, 0.5, 0.0] + rng.standard_normal(400)
    rows = "\n".join(",".join(f"{value:.4f}" for value in row) for row in x)
    (tmp_path / "rows.csv").write_text(f"a,b,c,d\n{rows}\n")
    columns, recipe = ("a", "b", "c", "d"), "random+leverage"
    settings = Settings("rows", "table", "../rows.csv", task="regress", columns=columns, recipe=recipe)
    with contextlib.closing(Project.create(tmp_path / "project", settings)) as project:
        for _ in range(2):
            run(project.folder, once=True)
            while (task := project.store.next_task("anna")) is not None:
                project.store.answer(task.token, "anna", "label", f"{y[task.row]:.4f}", 1.0)
        run(project.folder, once=True)
        meter, found = project.meter(), project.session().estimate
    assert meter is not None
    assert found is not None
    assert meter.test < 20
    assert meter.running == Span(*(found["rmse"][name] for name in ("value", "low", "high")))


def test_the_page_says_from_the_start_when_a_saving_can_be_shown() -> None:
    found = json.loads((Path(sentences.__file__).parent / "told.json").read_text())
    early = saving(compute(history(6), 20, 1000, 2, 7, Key(0)))
    assert outlook() in early
    assert f"In {found['projects']} simulated projects" in outlook()
    for share, half in found["half"].items():
        assert f"{100 * float(share):.0f} %" in outlook()
        assert f"{half or found['most']:,} labels" in outlook()
    for share, count in found["items"].items():
        assert f"about {count:,} for one of {100 * float(share):.0f} %" in outlook()
    never = None in found["half"].values()  # one clause for all shares with this answer
    assert outlook().count("fewer than half of them") == never
