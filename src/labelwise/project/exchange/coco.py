"""COCO-style JSON for classification: images, categories numbered from 1, and annotations that have no box."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from labelwise.errors import ArgumentError, SourceError
from labelwise.project.data.source import Images
from labelwise.project.exchange.entries import Entries
from labelwise.project.exchange.folders import images_of
from labelwise.project.project import Project


def coco(project: Project, found: Entries) -> dict[str, Any]:
    """The entries in that form. Image ids are our rows; a row without a label is an image without an annotation."""
    if project.settings.task == "regress":
        raise ArgumentError("coco is for classes; the labels of this project are numbers. Use csv or parquet")
    data = images_of(project)
    place = {row: at for at, row in enumerate(data.ids.tolist())}
    number = {name: at + 1 for at, name in enumerate(found.classes)}
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, int]] = []
    for entry in found.rows:
        images.append({"id": entry.row, "file_name": entry.ref, **_size(data, place[entry.row]), "slice": entry.slice})
        if entry.value is not None:
            told = {"id": len(annotations) + 1, "image_id": entry.row, "category_id": number[entry.value]}
            annotations.append(told)
    return {
        "info": {"description": project.settings.name, "version": "1.0"},
        "licenses": [],
        "images": images,
        "annotations": annotations,
        "categories": [{"id": at, "name": name, "supercategory": ""} for name, at in number.items()],
    }


def _size(data: Images, position: int) -> dict[str, int]:
    """Width and height as the file's first bytes have them; nothing for one that cannot be read."""
    from PIL import Image

    try:
        source = data.at(position)
        with Image.open(source if isinstance(source, Path) else io.BytesIO(source)) as picture:
            return {"width": picture.width, "height": picture.height}
    except (OSError, SourceError, ValueError, Image.DecompressionBombError):
        return {}
