"""Real pictures as inputs: a file of the user's, or the digits and photographs that scikit-learn ships."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opbench.errors import EnvironmentFault, UsageError

PHOTOS = ("china.jpg", "flower.jpg")


def pictures(source: str, image: tuple[int, int, int, int]) -> np.ndarray:
    """Pictures as float32 of shape (n, c, h, w), in [0, 1]; `source` is a file, "digits" or "photo".

    A picture is cut to the input's proportions around its middle and resized; one channel takes its brightness, three
    its colours. Fewer pictures than the batch has images are repeated. A .npy file is taken as it is.
    """
    n, c, h, w = image
    if source.endswith(".npy"):
        return _array(Path(source), image)
    if c not in (1, 3):
        raise UsageError(
            f"--image: a picture has 1 or 3 channels, but the input has {c}; give an array: --image FILE.npy"
        )
    found = digits() if source == "digits" else photos() if source == "photo" else [_opened(Path(source))]
    resized = [_fitted(found[i], c, h, w) for i in range(min(n, len(found)))]
    return np.stack([resized[i % len(resized)] for i in range(n)])


def digits() -> list[Any]:
    """The 1797 handwritten digits of scikit-learn, 8x8, in their order (Alpaydin and Kaynak, 1998)."""
    from PIL import Image

    images = _datasets().load_digits().images
    return [Image.fromarray((digit * (255 / 16)).astype(np.uint8)) for digit in images]


def photos() -> Sequence[Any]:
    """The two photographs of scikit-learn."""
    from PIL import Image

    return [Image.fromarray(_datasets().load_sample_image(name)) for name in PHOTOS]


def _datasets() -> Any:
    try:
        import sklearn.datasets
    except ImportError as error:
        raise EnvironmentFault(
            f"--image digits and photo come from scikit-learn, which cannot be imported ({error}): "
            "pip install 'opbench[pictures]'"
        ) from None
    return sklearn.datasets


def _opened(path: Path) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as picture:
            picture.load()
            return picture
    except UnidentifiedImageError:
        raise UsageError(f"{path}: is no picture; a PNG or JPEG file, a .npy array, digits or photo") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}; or use digits or photo") from None


def _fitted(picture: Any, c: int, h: int, w: int) -> np.ndarray:
    from PIL import Image, ImageOps

    mode = "L" if c == 1 else "RGB"
    fitted = ImageOps.fit(picture.convert(mode), (w, h), Image.Resampling.BILINEAR)
    return (np.asarray(fitted, np.float32) / 255).reshape(h, w, c).transpose(2, 0, 1)


def _array(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    try:
        array: np.ndarray = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    if array.shape != shape or array.dtype != np.float32:
        raise UsageError(f"{path}: holds {array.dtype} of shape {array.shape}; the network takes float32 {shape}")
    return array
