"""Temperature scaling recovers known temperatures, in any precision."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from labelwise.errors import ArgumentError, LabelError, NumericsError
from labelwise.signals.model.calibration import expected_calibration_error, fit_temperature, label_temperature


def sampled(temperature: float, n: int = 20_000, dtype: torch.dtype = torch.float64) -> tuple:
    """Logits, and labels drawn from their softmax at a known temperature."""
    generator = torch.Generator().manual_seed(0)
    z_NC = 3 * torch.randn(n, 10, generator=generator, dtype=torch.float64)
    y_N = torch.multinomial((z_NC / temperature).softmax(1), 1, generator=generator)[:, 0]
    return z_NC.to(dtype), y_N


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7, 6.0])
def test_a_known_temperature_is_recovered(temperature, dtype):
    found = fit_temperature(*sampled(temperature, dtype=dtype))
    assert found == pytest.approx(temperature, rel=0.05)  # 20,000 draws: a standard error of at most 1.5 %


def test_precision_of_the_logits_does_not_matter():
    z, y = sampled(2.0, n=500)
    assert fit_temperature(z.float(), y) == pytest.approx(fit_temperature(z, y), rel=1e-6)


@pytest.mark.parametrize("scale", [0.1, 3.0, 7.0])
def test_scaling_the_logits_scales_the_temperature(scale):
    z, y = sampled(1.5, n=300)
    assert fit_temperature(scale * z, y) == pytest.approx(scale * fit_temperature(z, y), rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), n=st.integers(2, 60), classes=st.integers(2, 6), scale=st.floats(0.1, 30))
def test_no_temperature_in_the_range_is_better(seed, n, classes, scale):
    generator = torch.Generator().manual_seed(seed)
    z = scale * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    y = torch.randint(classes, (n,), generator=generator)
    found = fit_temperature(z, y)
    best = cross_entropy(z / found, y)
    grid = torch.linspace(0.05, 20, 400, dtype=torch.float64).tolist()
    assert min(cross_entropy(z / t, y) for t in [*grid, found * 0.999, min(20.0, found * 1.001)] if t >= 0.05) >= (
        best - 1e-12
    )


def test_rows_that_are_all_right_run_to_the_cold_edge_and_all_wrong_to_the_hot_one():
    z = torch.tensor([[4.0, 0.0], [0.0, 1.0]])
    assert fit_temperature(z, torch.tensor([0, 1])) == 0.05
    assert fit_temperature(z, torch.tensor([1, 0])) == 20.0
    assert 0.05 < fit_temperature(*sampled(1.0, n=200)) < 20.0


def test_labels_are_never_made_certain_by_rows_that_are_all_right():
    z = torch.tensor([[4.0, 0.0], [0.0, 1.0]])
    temperature, note = label_temperature(z, torch.tensor([0, 1]))
    assert temperature == 1.0
    assert "2 held-out rows do not determine it" in note
    temperature, note = label_temperature(z, torch.tensor([1, 0]))
    assert temperature == 20.0
    assert "end of its range" in note
    fine, labels = sampled(2.0, n=500)
    assert label_temperature(fine, labels) == (fit_temperature(fine, labels), "")


def test_equal_logits_leave_the_temperature_at_one():
    assert fit_temperature(torch.full((5, 3), 2.0), torch.tensor([0, 1, 2, 0, 0])) == 1.0


def test_calibration_error_of_a_hand_made_case():
    probs = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.6, 0.4]])
    labels = torch.tensor([0, 1, 0, 0])
    # two bins of two rows: |0.5 - 0.9| / 2 + |1 - 0.6| / 2
    assert expected_calibration_error(probs, labels) == pytest.approx(0.4)
    assert expected_calibration_error(probs, labels, bins=1) == pytest.approx(abs(0.75 - 0.75))


def test_temperature_lowers_the_calibration_error():
    z, y = sampled(3.0, n=4000)
    before = expected_calibration_error(z.softmax(1), y)
    assert expected_calibration_error((z / fit_temperature(z, y)).softmax(1), y) < before / 5


def test_bad_input_is_named():
    z = torch.zeros(3, 2)
    with pytest.raises(LabelError, match="at least one row"):
        fit_temperature(z[:0], torch.tensor([], dtype=torch.int64))
    with pytest.raises(LabelError, match="row 1 has the label 2"):
        fit_temperature(z, torch.tensor([0, 2, 1]))
    with pytest.raises(NumericsError, match="row 2 of 3"):
        fit_temperature(torch.tensor([[0.0, 1], [1, 0], [torch.inf, 0]]), torch.tensor([0, 1, 0]))
    with pytest.raises(ArgumentError, match="bins"):
        expected_calibration_error(z, torch.tensor([0, 0, 0]), bins=0)
