"""Real images as inputs of networks: digits from scikit-learn and photographs from scikit-image."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from opbench.errors import UsageError, unknown_name
from opbench.paths import MissingExtra

PHOTOGRAPHS = ("astronaut", "brick", "camera", "chelsea", "coffee", "coins", "grass", "gravel", "moon", "rocket")
"""The photographs that are included in the package of scikit-image; it downloads the others."""
LENET_WEIGHTS = Path(__file__).parent / "weights" / "lenet_digits.safetensors"
TEST_EVERY = 5
"""Each fifth digit is in the test set; the others are for training."""


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return all 1797 handwritten digits as images (n, 1, 28, 28) from 0 to 1, and their classes (n).

    scikit-learn has them with 8 x 8 pixels of 0 to 16 (Alpaydin and Kaynak 1998); each pixel becomes 3 x 3, with a
    border of two pixels of 0 around.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra("the images of digits need scikit-learn, which is not installed", "nets")
    file = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():  # load_digits reads this file; to import scikit-learn for it takes seconds
        table = np.loadtxt(file, delimiter=",")
        pixels, classes = table[:, :-1].reshape(-1, 8, 8), table[:, -1]
    else:
        from sklearn.datasets import load_digits

        data = load_digits()
        pixels, classes = data.images, data.target
    enlarged = (pixels / 16).repeat(3, axis=1).repeat(3, axis=2)
    images = np.pad(enlarged, ((0, 0), (2, 2), (2, 2)))[:, None]
    return np.ascontiguousarray(images, np.float32), classes.astype(np.int64)


def digits_test_set(count: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return `count` test digits and their classes, repeated if there are fewer."""
    images, classes = digits()
    image_indices = np.arange(0, len(images), TEST_EVERY)
    image_indices = image_indices if count is None else np.resize(image_indices, count)
    return images[image_indices], classes[image_indices]


def enlarge_images(images: np.ndarray, size: int) -> np.ndarray:
    """Return images (n, c, h, w) at size x size, by nearest-neighbour scaling."""
    source_index = np.arange(size) * images.shape[2] // size
    return np.ascontiguousarray(images[:, :, source_index][:, :, :, source_index])


def photographs(shape: tuple[int, ...]) -> np.ndarray:
    """Return a batch (n, c, h, w) of photographs with values from 0 to 1, repeated if there are fewer than n.

    Each is the middle square, resized with smoothing; grey if c is 1, red, green and blue if c is 3.
    """
    if len(shape) != 4 or shape[1] not in (1, 3):
        raise UsageError(
            f"photographs of shape {shape} are not supported; use (n, 1, h, w) or (n, 3, h, w)",
            kind="not-allowed",
            subject="photographs",
            value=shape,
        )
    n, c, h, w = shape
    images = [photograph(name, c, (h, w)) for name in PHOTOGRAPHS[:n]]
    return np.stack([images[i % len(images)] for i in range(n)])


def photograph(name: str, channels: int, size: tuple[int, int]) -> np.ndarray:
    """Return one photograph as (channels, h, w)."""
    try:
        import skimage.color
        import skimage.data
        import skimage.transform
    except ImportError:
        raise MissingExtra("the photographs need scikit-image, which is not installed", "nets") from None
    if name not in PHOTOGRAPHS:
        raise UsageError(unknown_name("photograph", name, PHOTOGRAPHS))
    image = getattr(skimage.data, name)() / 255.0
    if channels == 1 and image.ndim == 3:
        image = skimage.color.rgb2gray(image)
    side = min(image.shape[:2])
    top, left = ((extent - side) // 2 for extent in image.shape[:2])
    square = image[top : top + side, left : left + side]
    resize: Any = skimage.transform.resize  # this library has no type hints
    resized = resize(square, size, anti_aliasing=True).reshape(*size, -1)
    planes = np.broadcast_to(resized, (*size, channels)).transpose(2, 0, 1)
    return np.ascontiguousarray(planes, np.float32)


def trained_lenet() -> dict[str, np.ndarray]:
    """Return LeNet's weights, trained on the digits with PyTorch to 99 % accuracy (tests/networks/train_lenet.py)."""
    from safetensors.numpy import load_file

    weights: dict[str, np.ndarray] = load_file(LENET_WEIGHTS)
    return weights
