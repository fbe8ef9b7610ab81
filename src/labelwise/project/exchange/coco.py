"""COCO-style JSON for classification: images, categories numbered from 1, and annotations without boxes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from labelwise.errors import ArgumentError, SourceError
from labelwise.project.data.source import Images
from labelwise.project.exchange.entries import Entries
from labelwise.project.exchange.folders import images_of
from labelwise.project.label_sets import names_of
from labelwise.project.project import Project


def coco(project: Project, found: Entries) -> dict[str, Any]:
    """The entries as COCO JSON. Image ids are row ids; a row without a label is an image without an annotation."""
    if project.settings.task == "regress":
        raise ArgumentError(
            "the coco format is for classes, and the labels of this project are numbers. Use csv or parquet"
        )
    data = images_of(project)
    position = {row: i for i, row in enumerate(data.ids.tolist())}
    number = {name: i for i, name in enumerate(found.classes, 1)}
    multi = project.settings.task == "multi"
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, int]] = []
    for entry in found.rows:
        images.append(
            {"id": entry.row, "file_name": entry.ref, **_size(data, position[entry.row]), "slice": entry.slice}
        )
        if entry.value is not None:
            for name in names_of(entry.value) if multi else (entry.value,):
                one = {"id": len(annotations) + 1, "image_id": entry.row, "category_id": number[name]}
                annotations.append(one)
    return {
        "info": {"description": project.settings.name, "version": "1.0"},
        "licenses": [],
        "images": images,
        "annotations": annotations,
        "categories": [{"id": i, "name": name, "supercategory": ""} for name, i in number.items()],
    }


def _size(data: Images, position: int) -> dict[str, int]:
    """Width and height from the file header; empty if the image cannot be read."""
    from PIL import Image

    try:
        source = data.at(position)
        with Image.open(source if isinstance(source, Path) else io.BytesIO(source)) as picture:
            return {"width": picture.width, "height": picture.height}
    except (OSError, SourceError, ValueError, Image.DecompressionBombError):
        return {}
