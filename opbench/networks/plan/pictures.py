"""Read the images that `--image` names: a user's file, digits or photographs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from opbench.errors import UsageError
from opbench.networks.plan.inputs import digits_test_set, enlarge_images, photographs

if TYPE_CHECKING:
    from PIL import Image


def pictures(source: str, shape: tuple[int, int, int, int]) -> np.ndarray:
    """Return images as float32 (n, c, h, w) with values from 0 to 1; `source` is a file, "digits" or "photo".

    The picture of a file is cut to the input's proportions around its middle and resized. One channel receives
    its brightness, three its colours; each image of a batch is the same. A .npy file is used unchanged.
    """
    n, c, h, w = shape
    if source.endswith(".npy"):
        return _read_array(Path(source), shape)
    if source == "digits":
        return _test_digits(shape)
    if source == "photo":
        return photographs(shape)
    if c not in (1, 3):
        raise UsageError(
            f"--image: a picture has 1 or 3 channels, but the input of the network has {c} channels; give an array: "
            "--image FILE.npy",
            kind="not-allowed",
            subject="--image",
            value=c,
        )
    return np.repeat(_fit_to_shape(_open_picture(Path(source)), c, h, w)[None], n, axis=0)


def labels(source: str, count: int) -> tuple[int, ...]:
    """Return the classes of `count` images of a source; empty if unknown."""
    if source != "digits":
        return ()
    _, classes = digits_test_set(count)
    return tuple(map(int, classes))


def _test_digits(shape: tuple[int, int, int, int]) -> np.ndarray:
    """Return test digits, enlarged as for training, repeated if there are fewer."""
    digits, _ = digits_test_set(shape[0])
    if shape[1] != 1 or shape[2] != shape[3]:
        raise UsageError(
            f"--image digits: these images are grey and square, and the input of the network is {shape[1:]}; choose "
            "--image photo, or name a file",
            kind="not-allowed",
            subject="--image",
            value=shape[1:],
        )
    return digits if shape[2] == digits.shape[2] else enlarge_images(digits, shape[2])


def _open_picture(path: Path) -> Image.Image:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as picture:
            picture.load()
            return picture
    except UnidentifiedImageError:
        raise UsageError(
            f"--image {path}: this file is not a picture; name a PNG, JPEG or .npy file, or write --image digits or "
            "photo",
            kind="not-a-picture",
            subject=Path(path),
        ) from None
    except OSError as error:
        raise UsageError(
            f"--image {path}: cannot be read: {error.strerror or error}; name another file, or write --image digits or "
            "photo",
            kind="unreadable",
            subject=Path(path),
            value=error.errno,
        ) from None


def _fit_to_shape(picture: Image.Image, c: int, h: int, w: int) -> np.ndarray:
    from PIL import Image, ImageOps

    mode = "L" if c == 1 else "RGB"
    fitted = ImageOps.fit(picture.convert(mode), (w, h), Image.Resampling.BILINEAR)
    return (np.asarray(fitted, np.float32) / 255).reshape(h, w, c).transpose(2, 0, 1)


def _read_array(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    try:
        array: np.ndarray = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--image {path}: cannot be read: {error}; name a .npy file that numpy.save wrote",
            kind="unreadable",
            subject=Path(path),
            cause=error,
        ) from None
    if array.shape != shape or array.dtype != np.float32:
        raise UsageError(
            f"--image {path}: this array is {array.dtype} of shape {array.shape}, and the network needs float32 of "
            f"shape {shape}; convert the array with numpy and save it again",
            kind="other-shape",
            subject=Path(path),
            value=array.shape,
            allowed=shape,
        )
    return array
