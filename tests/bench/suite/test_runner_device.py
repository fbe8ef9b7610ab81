"""The benchmark on an accelerator: rows stay there, and a run repeats to the bit. Needs a CUDA device."""

import os

import pytest
import torch
import yaml

from labelwise.bench.suite.job import comparable, make_curve, repeatable, run_job
from labelwise.bench.suite.suite import read_suite

pytest.importorskip("sklearn")
cuda = pytest.mark.gpu
MODELS = (
    {"name": "resnet18", "width": 8, "epochs": 6, "batch": 32},
    {"name": "mlp", "hidden": [32], "epochs": 6},
)


def cells_of(tmp_path, model, strategies=("badge", "dynamical")):
    suite = {
        "datasets": [{"name": "digits", "limit": 300, "valid": 50}],
        "models": [model],
        "strategies": list(strategies),
        "seeds": 1,
        "start": 40,
        "k": 10,
        "rounds": 2,
        "device": "cuda",
    }
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump(suite))
    return read_suite(path).jobs()[0]


@cuda
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["name"])
def test_a_run_repeats_to_the_bit(tmp_path, model):
    for job in cells_of(tmp_path, model):
        found = []
        for again in ("one", "two"):
            records = []
            run_job(job, tmp_path / again, records.append)
            found.append([comparable(record) for record in records])
        assert found[0] == found[1]


@cuda
def test_rows_are_kept_on_the_device(tmp_path):
    for job in cells_of(tmp_path, MODELS[0], ("margin",)):
        curve = make_curve(job, tmp_path)
        for pool in (curve.session.pool, curve.data.test, curve.data.valid):
            assert pool.inputs(pool.ids[:2]).is_cuda


def test_what_repeats_is_put_back():
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    with repeatable("cuda"):
        assert torch.backends.cudnn.deterministic
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"]
    assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == before
