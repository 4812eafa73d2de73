"""Tiny sets of images with boxes and with masks, in the published layouts, written for a test."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.data_sets import jpeg

SIZES = ((40, 60), (60, 40), (48, 48), (30, 90))  # height, width of the images that a set cycles through
CATEGORIES = (
    (18, "dog"),
    (1, "person"),
    (90, "toothbrush"),
)  # not in order, with gaps: as COCO's ids have them
CITIES = ("aachen", "zurich")


def coco_annotations(images: int = 6, sizes: tuple[tuple[int, int], ...] = SIZES) -> dict[str, Any]:
    """The content of an instances_*.json: image 10 has no box, image 11 one, image 12 two, and so on."""
    content: dict[str, Any] = {
        "info": {"year": 2017},
        "categories": [{"id": number, "name": name, "supercategory": "it"} for number, name in CATEGORIES],
        "images": [],
        "annotations": [],
    }
    for place in range(images):
        height, width = sizes[place % len(sizes)]
        content["images"].append(
            {"id": 10 + place, "file_name": f"{place:012}.jpg", "height": height, "width": width}
        )
        for box in range(place):
            number = len(content["annotations"])
            content["annotations"].append(
                {
                    "id": 100 + number,
                    "image_id": 10 + place,
                    "category_id": CATEGORIES[number % len(CATEGORIES)][0],
                    "bbox": [1.5 + box, 2.25, 5.0, 4.5 + box],
                    "area": 20.0,
                    "iscrowd": 0,
                    "segmentation": [[1.5, 2.25, 6.5, 2.25, 6.5, 6.75]],
                }
            )
    return content


def write_coco(
    root: Path, content: dict[str, Any] | str | bytes | None = None, part: str = "train2017"
) -> Path:
    """Write one split below root; images for what is listed, as far as it can be read. Returns the annotations' file."""
    content = coco_annotations() if content is None else content
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    (root / part).mkdir(exist_ok=True)
    path = root / "annotations" / f"instances_{part}.json"
    if isinstance(content, dict):
        for place, image in enumerate(content["images"]):
            file = root / part / image["file_name"]
            file.write_bytes(jpeg(int(image["height"]), int(image["width"]), seed=place))
        content = json.dumps(content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def png(pixels: np.ndarray) -> bytes:
    """Encode (height, width) or (channels, height, width) bytes."""
    import torch
    from torchvision.io import encode_png

    planes = torch.from_numpy(np.ascontiguousarray(pixels))
    return bytes(encode_png(planes if planes.dim() == 3 else planes[None]).numpy())


def write_cityscapes(
    root: Path, *, images: int = 3, size: tuple[int, int] = (16, 32), part: str = "train", seed: int = 0
) -> list[tuple[Path, Path, np.ndarray, np.ndarray]]:
    """Write a split with all 34 ids; returns the files and what is in them: image, mask, pixels, ids; by name."""
    random = np.random.default_rng(seed)
    written = []
    for place in range(images):
        city = CITIES[place % len(CITIES)]
        stem = f"{city}_{place:06}_000019"
        pixels = random.integers(0, 256, (3, *size), np.uint8)
        ids = (np.arange(size[0] * size[1]).reshape(size) + place) % 34
        image = root / "leftImg8bit" / part / city / f"{stem}_leftImg8bit.png"
        mask = root / "gtFine" / part / city / f"{stem}_gtFine_labelIds.png"
        for file, content in ((image, pixels), (mask, ids.astype(np.uint8))):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(png(content))
        # Other files of the published archives.
        mask.with_name(f"{stem}_gtFine_polygons.json").write_text("{}")
        mask.with_name(f"{stem}_gtFine_color.png").write_bytes(png(pixels))
        written.append((image, mask, pixels, ids))
    return sorted(written, key=lambda each: each[0])
