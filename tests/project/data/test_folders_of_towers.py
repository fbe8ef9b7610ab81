"""Encoders in folders of timm and open_clip."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from labelwise.errors import ArgumentError, SourceError
from labelwise.project.data.encoders import encoder_of

CLIP = {
    "model_cfg": {
        "embed_dim": 32,
        "vision_cfg": {"image_size": 64, "layers": 2, "width": 64, "patch_size": 16, "head_width": 32},
        "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1},
    },
    "preprocess_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
}


def pictures(size: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).integers(0, 255, (3, size, size, 3)).astype(np.uint8))


@pytest.mark.parametrize(
    ("file", "content", "library"),
    [("config.json", {"architecture": "vit_tiny"}, "timm"), ("open_clip_config.json", CLIP, "open_clip")],
)
def test_what_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, content: dict[str, object], library: str
) -> None:
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(SourceError, match=r"ends in \.safetensors"):
        encoder_of(str(tmp_path), "image", None)
    (tmp_path / "model.safetensors").touch()
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ArgumentError, match=f"pip install {library}"):
        encoder_of(str(tmp_path), "image", None)


def test_a_folder_of_timm(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("test_vit.r160_in1k", pretrained=False)
    timm.models.save_for_hf(model, tmp_path, safe_serialization=True)
    encoder = encoder_of(str(tmp_path), "image", None)
    rows = pictures(encoder.size)
    found = encoder.encode(rows)
    assert found.shape == (3, encoder.width)
    assert encoder.encode(rows[1:2])[0] == pytest.approx(found[1], abs=1e-4)


def test_a_folder_of_open_clip(tmp_path: Path) -> None:
    open_clip = pytest.importorskip("open_clip")
    from safetensors.torch import save_file

    (tmp_path / "open_clip_config.json").write_text(json.dumps(CLIP))
    model = open_clip.CLIP(**CLIP["model_cfg"])
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, tmp_path / "model.safetensors")
    encoder = encoder_of(str(tmp_path), "image", None)
    assert (encoder.size, encoder.width) == (64, 32)
    assert encoder.encode(pictures(64)).shape == (3, 32)
