"""Data sets for training: images or text with their targets, split into a training set and a test set."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from opbench import units
from opbench.errors import UsageError, unknown_name
from opbench.networks.plan.inputs import TEST_EVERY, digits, enlarge_images
from opbench.networks.plan.texts import LIBRARY_TEXT, is_test_sequence, read_text, sequences
from opbench.paths import MissingExtra

TEXTURES = ("grass", "brick")
"""Photographs of 512 x 512 that scikit-image ships; the second is where the mask is 1."""
TEXTURE_SIZE = 512
"""Rows and columns of each texture."""
TRAINING_ROWS = 384
"""Rows of a texture used for training; the rows below them are the test set."""
DATA_OF_NETWORK = {
    "lenet": "digits",
    "alexnet": "digits",
    "unet": "textures",
    "resnet18": "digits",
    "resnet50": "digits",
    "mobilenetv3": "digits",
    "gpt2": LIBRARY_TEXT,
}
"""The default data set of each shipped network that can be trained."""
NETWORK_OF_DATA = {"digits": "lenet", "textures": "unet", LIBRARY_TEXT: "gpt2"}
"""The smallest shipped network that each named data set fits."""
MAX_BYTES = 2 << 30
"""Most bytes of all training pictures, which are on the device together."""
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".npy")


@dataclass(frozen=True)
class DataSet:
    """A training set and a test set: float32 images (items, c, h, w), with targets.

    Targets are classes as int32, or arrays in float32. Of text: sequences of tokens (items, tokens) in int32,
    and as targets the token after each place, in the same shape.
    """

    name: str
    images: np.ndarray = field(repr=False)
    targets: np.ndarray = field(repr=False)
    test_images: np.ndarray = field(repr=False)
    test_targets: np.ndarray = field(repr=False)
    variants: int = 1
    """Number of altered versions of each picture in `images`, stored one after the other; an epoch uses one of them."""
    loss: str = "cross_entropy"
    """The usual loss for this data."""

    def __post_init__(self) -> None:
        for name, images, targets in (
            ("training set", self.images, self.targets),
            ("test set", self.test_images, self.test_targets),
        ):
            if len(images) != len(targets) or not len(images):
                raise UsageError(
                    f"--data {self.name}: the {name} has {len(images)} images and {len(targets)} targets; store one "
                    "target for each image, and at least one image",
                    kind="other-length",
                    subject=name,
                    value=len(images),
                    allowed=len(targets),
                )
            if not np.isfinite(images).all():
                raise UsageError(
                    f"--data {self.name}: an image of the {name} has a NaN or an infinity; remove or correct the "
                    "images for which numpy.isfinite(images) is not all true",
                    kind="not-finite",
                    subject=name,
                )

    @property
    def items(self) -> int:
        """Return the number of training images, without their variations."""
        return len(self.images) // self.variants

    @property
    def is_text(self) -> bool:
        """Return whether the data set is text: sequences of tokens, with a target for each token."""
        return self.images.ndim == 2 and self.images.shape == self.targets.shape

    @property
    def unit(self) -> str:
        """Return the name of the items: "images" or "sequences"."""
        return "sequences" if self.is_text else "images"

    @property
    def targets_per_item(self) -> int:
        """Return the number of classes per item: one for an image, one per token for a text."""
        return self.targets.shape[1] if self.is_text else 1

    @property
    def sha256(self) -> str:
        """Return a checksum of all images and targets."""
        digest = hashlib.sha256()
        for array in (self.images, self.targets, self.test_images, self.test_targets):
            digest.update(f"{array.dtype}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def in_colour(self) -> DataSet:
        """Return the data set with grey images repeated as red, green and blue."""
        images, test_images = (np.repeat(array, 3, axis=1) for array in (self.images, self.test_images))
        return replace(self, images=images, test_images=test_images)

    def order(self, epochs: int, batch: int, seed: int) -> np.ndarray:
        """Return indices of images in whole batches for each epoch: every image once, in one of its variations."""
        epochs_order = []
        items_in_batches = self.items // batch * batch
        for epoch in range(epochs):
            rng = np.random.default_rng([seed, epoch])
            chosen_items = rng.permutation(self.items)[:items_in_batches]
            epochs_order.append(chosen_items * self.variants + rng.integers(self.variants, size=items_in_batches))
        return np.concatenate(epochs_order).astype(np.int32)

    def require_targets(self, loss: str, shape: tuple[int, ...], network: str = "") -> None:
        """Raise UsageError, before anything runs, if a loss or an output shape does not fit the targets."""
        targets = f"{self.targets.dtype}{list(self.targets.shape[1:])}"
        network_label, suggestion = network or "the network", fitting_commands(network, self.name)
        if loss == "cross_entropy":
            if self.targets.dtype != np.int32 or (self.targets.ndim != 1 and not self.is_text):
                raise UsageError(
                    "--loss cross_entropy needs one class (int32) for each picture, and the targets of --data "
                    f"{self.name} are {targets}; choose --loss binary_cross_entropy, l1 or mse",
                    kind="other-targets",
                    subject=self.name,
                    value=targets,
                    allowed="int32[]",
                )
            if len(shape) != 2:
                raise UsageError(
                    f"--data {self.name}: this data set has one class for each picture, and the output of "
                    f"{network_label} is {list(shape[1:])}, not a row of scores; choose another network or data "
                    f"set{suggestion}",
                    kind="not-rows",
                    subject=self.name,
                    value=shape,
                )
            for name, classes in (("training set", self.targets), ("test set", self.test_targets)):
                invalid = classes[(classes < 0) | (classes >= shape[1])]
                if invalid.size:
                    raise UsageError(
                        f"--data {self.name}: {invalid.size} of {classes.size} pictures of the {name} have classes "
                        f"such as {int(invalid[0])}, but the network has the classes 0 to {shape[1] - 1}; correct the "
                        f"targets, or choose a network with more classes{suggestion}",
                        kind="class-out-of-range",
                        subject=name,
                        value=int(invalid[0]),
                        allowed=shape[1] - 1,
                    )
            return
        if self.targets.shape[1:] != shape[1:] or self.targets.dtype != np.float32:
            raise UsageError(
                f"--loss {loss} needs targets of float32{list(shape[1:])}, the shape of the output of {network_label}, "
                f"and the targets of --data {self.name} are {targets}; choose another data set or loss{suggestion}",
                kind="other-targets",
                subject=loss,
                value=targets,
                allowed=shape[1:],
            )


def fitting_commands(network: str, data: str) -> str:
    """Return commands with data for this network, and with a network for this data; empty if both are unknown."""
    data_name = data.partition(":")[0].partition("+")[0]
    pairs = [(network, DATA_OF_NETWORK[network])] if network in DATA_OF_NETWORK else []
    pairs += [(NETWORK_OF_DATA[data_name], data_name)] if data_name in NETWORK_OF_DATA else []
    commands = dict.fromkeys(f"opbench net train {name} --data {source}" for name, source in pairs)
    return f"; commands that fit: {'; '.join(commands)}" if commands else ""


def load_data(name: str, image: tuple[int, ...], seed: int = 0, network: str = "") -> DataSet:
    """Load the data set of a name, or of a user's file or folder, for the images (n, c, h, w) of a network.

    Names: digits (from scikit-learn; each fifth is in the test set), digits+2 (shifted by up to two pixels each time),
    digits:SIZE (enlarged), textures and textures:COUNT (which of two textures a pixel shows); these are grey, and
    repeated as red, green and blue for a network of three channels. A file is an .npz with images, targets and, for a
    test set, held_images and held_targets. A folder has a subfolder of pictures for each class. A network of tokens
    (n, tokens) takes text, the sources of Python's library, or a .txt file: one token per byte. Raises UsageError for a
    data set that does not fit.
    """
    if (name == LIBRARY_TEXT or name.endswith(".txt")) != (len(image) == 2):
        expected, other = (
            ("sequences of tokens", "pictures") if len(image) == 2 else ("pictures", "sequences of tokens")
        )
        raise UsageError(
            f"--data {name}: this data set has {other}, and {network or 'the network'} needs {expected}; choose "
            f"another data set or network{fitting_commands(network, name)}",
            kind="other-shape",
            subject=name,
            value=other,
            allowed=expected,
        )
    if len(image) == 2:
        return text_data(name, image[1])
    source, _, option = name.partition(":")
    data_name, _, shift = source.partition("+")
    in_colour = image[1] == 3
    if data_name == "digits":
        size = _read_number(name, option) if option else image[2]
        # Check before the pictures are made, which takes seconds.
        _require_shape(name, (3 if in_colour else 1, size, size), image, network)
        data = digit_set(_read_number(name, shift or "0"), size, name, in_colour)
    elif data_name == "textures" and not shift:
        data = two_texture_images(image[2], _read_number(name, option or "512"), seed, name, in_colour)
    elif Path(name).is_dir():
        data = _read_folder(Path(name))
    elif name.endswith(".npz"):
        data = _read_file(Path(name))
    else:
        raise UsageError(
            f"--data: {unknown_name('data set', name, ('digits', 'digits+2', 'textures'))}; "
            "or name a folder of pictures, an .npz or a .txt",
            kind="unknown-name",
            subject="data set",
            value=name,
        )
    _require_shape(name, data.images.shape[1:], image, network)
    return data


def _require_shape(name: str, shape: tuple[int, ...], image: tuple[int, ...], network: str) -> None:
    """Raise UsageError if images of a shape (c, h, w) do not fit a network's input (n, c, h, w)."""
    if shape != tuple(image[1:]):
        data_name = name.partition(":")[0].partition("+")[0]
        raise UsageError(
            f"--data {name}: the images of this data set are {list(shape)}, and {network or 'the network'} needs "
            f"{list(image[1:])}; choose another data set or "
            f"network{_fitting_command(data_name, shape, image, network)}",
            kind="other-shape",
            subject=name,
            value=shape,
            allowed=tuple(image[1:]),
        )


def _fitting_command(data_name: str, shape: tuple[int, ...], image: tuple[int, ...], network: str) -> str:
    """Return a command with data that fits, for a data set that does not; empty for a user's own files."""
    if data_name not in NETWORK_OF_DATA:
        return ""
    if shape[0] != image[1]:
        option = " (--channels 1)" if network in ("unet", "resnet18", "resnet50", "mobilenetv3") else ""
        return (
            f", or a network of one or three channels{option}, because the shipped data sets are grey and opbench "
            "repeats grey for three channels; an .npz or a folder of pictures may have any channels"
        )
    if DATA_OF_NETWORK.get(network, data_name) != data_name:
        return fitting_commands(network, data_name)
    return f"; without a size, opbench enlarges the pictures to fit: --data {data_name}"


def _require_fitting_size(name: str, pictures: int, size: int, in_colour: bool) -> None:
    """Raise UsageError for a data set that would not fit into GPU memory, before its images are made."""
    nbytes = 4 * pictures * size * size * (3 if in_colour else 1)
    if nbytes > MAX_BYTES:
        fewer = "textures:64" if name.startswith("textures") else "digits"
        raise UsageError(
            f"--data {name}: {pictures} pictures of {size}x{size} take {units.si(nbytes, 'B')} of GPU memory, and at "
            f"most {units.si(MAX_BYTES, 'B')} are allowed; choose --data {fewer}, or smaller pictures",
            kind="too-large",
            subject=name,
            value=nbytes,
            allowed=MAX_BYTES,
        )


def _read_number(name: str, text: str) -> int:
    if not text.isdigit():
        raise UsageError(
            f"--data {name}: '{text}' is not a whole number; write, for example, digits+2 or digits:224",
            kind="not-allowed",
            subject=name,
            value=text,
        )
    return int(text)


def digit_set(shift: int, size: int, name: str, in_colour: bool = False) -> DataSet:
    """Return 1437 training digits and 360 test digits with 28 x 28 pixels, or enlarged to `size`."""
    images, classes = digits()
    is_test = np.arange(len(images)) % TEST_EVERY == 0
    training, variants = images[~is_test], 1
    if shift:
        shifts = [(down, right) for down in range(-shift, shift + 1) for right in range(-shift, shift + 1)]
        padded = np.pad(training, ((0, 0), (0, 0), (shift, shift), (shift, shift)))
        windows = [
            padded[:, :, shift - down : shift - down + 28, shift - right : shift - right + 28] for down, right in shifts
        ]
        training, variants = np.stack(windows, axis=1).reshape(-1, *training.shape[1:]), len(shifts)
    test = images[is_test]
    _require_fitting_size(name, len(training), size, in_colour)
    if size != images.shape[2]:
        training, test = enlarge_images(training, size), enlarge_images(test, size)
    targets = classes.astype(np.int32)
    data = DataSet(name, training, targets[~is_test].repeat(variants), test, targets[is_test], variants)
    return data.in_colour() if in_colour else data


def two_texture_images(size: int, count: int, seed: int, name: str, in_colour: bool = False) -> DataSet:
    """Return images of two equally bright textures, separated by random blobs; the target is the mask.

    The textures are photographs whose grey values are replaced by their rank, so that brightness carries no
    information. Pictures larger than 128 x 128, for which the photographs have too few rows, are cut from
    enlarged photographs.
    """
    _require_fitting_size(name, 2 * count, size, in_colour)
    try:
        import skimage.data
    except ImportError:
        raise MissingExtra("the textures need scikit-image, which is not installed", "nets") from None
    rng = np.random.default_rng([seed, size])
    factor = max(1, -(-size // (TEXTURE_SIZE - TRAINING_ROWS)))
    photographs = [
        _uniform_grey_values(np.asarray(getattr(skimage.data, texture)(), np.float64)) for texture in TEXTURES
    ]
    photographs = [texture.repeat(factor, axis=0).repeat(factor, axis=1) for texture in photographs]

    def draw(image_count: int, first_row: int, end_row: int) -> tuple[np.ndarray, np.ndarray]:
        images = np.empty((image_count, 1, size, size), np.float32)
        masks = np.empty_like(images)
        for index in range(image_count):
            mask, crops = _random_mask(rng, size), []
            for texture in photographs:
                top, left = (
                    rng.integers(first_row, end_row - size + 1),
                    rng.integers(0, factor * TEXTURE_SIZE - size + 1),
                )
                crops.append(texture[top : top + size, left : left + size])
            images[index, 0], masks[index, 0] = np.where(mask, crops[1], crops[0]), mask
        return images, masks

    images, masks = draw(count, 0, factor * TRAINING_ROWS)
    test_images, held_masks = draw(max(1, count // 8), factor * TRAINING_ROWS, factor * TEXTURE_SIZE)
    data = DataSet(name, images, masks, test_images, held_masks, loss="binary_cross_entropy")
    return data.in_colour() if in_colour else data


def text_data(name: str, tokens: int) -> DataSet:
    """Return sequences of tokens from `text` or from a .txt file; a few are the test set."""
    inputs, targets = sequences(read_text(name), tokens, name)
    is_test = is_test_sequence(len(inputs))
    return DataSet(name, inputs[~is_test], targets[~is_test], inputs[is_test], targets[is_test])


def _uniform_grey_values(image: np.ndarray) -> np.ndarray:
    grey = image.mean(axis=2) if image.ndim == 3 else image
    ranks = grey.reshape(-1).argsort(kind="stable").argsort(kind="stable")
    return (ranks / (ranks.size - 1) - 0.5).reshape(grey.shape)


def _random_mask(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return a random mask of about half of the pixels, made from a sum of long waves."""
    y, x = np.mgrid[0:size, 0:size] / size
    total = np.zeros((size, size))
    for _ in range(6):
        fy, fx = rng.normal(0, 1.2, 2)
        total += np.cos(2 * np.pi * (fy * y + fx * x + rng.random()))
    mask: np.ndarray = total > np.median(total)
    return mask


def _read_file(path: Path) -> DataSet:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            content = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--data {path}: cannot be read: {error}; name an .npz file that numpy.savez wrote",
            kind="unreadable",
            subject=path,
            cause=error,
        ) from None
    for name in ("images", "targets"):
        if name not in content:
            raise UsageError(
                f"--data {path}: this file has no array '{name}', but {', '.join(content)}; store the array with "
                f"numpy.savez({str(path)!r}, images=…, targets=…)",
                kind="missing-array",
                subject=path,
                value=tuple(content),
                allowed=name,
            )
    images, targets = np.asarray(content["images"], np.float32), _convert_targets(content["targets"])
    if "held_images" in content and "held_targets" in content:
        test_set = np.asarray(content["held_images"], np.float32), _convert_targets(content["held_targets"])
        return DataSet(str(path), images, targets, *test_set, loss=_usual_loss(targets))
    return own_data(images, targets, str(path))


def _convert_targets(array: np.ndarray) -> np.ndarray:
    is_class = array.ndim == 1 and np.issubdtype(array.dtype, np.integer)
    return np.asarray(array, np.int32 if is_class else np.float32)


def _usual_loss(targets: np.ndarray) -> str:
    return "cross_entropy" if targets.dtype == np.int32 else "mse"


def own_data(images: np.ndarray, targets: np.ndarray, name: str = "own") -> DataSet:
    """Return a data set of images (items, c, h, w) and their targets; every fifth item is in the test set."""
    images, targets = np.asarray(images, np.float32), _convert_targets(targets)
    is_test = np.arange(len(images)) % TEST_EVERY == 0
    return DataSet(
        name, images[~is_test], targets[~is_test], images[is_test], targets[is_test], loss=_usual_loss(targets)
    )


def _read_folder(path: Path) -> DataSet:
    """Return images by class, in the order of the subfolders' names; grey values are from 0 to 1."""
    class_folders = sorted(folder for folder in path.iterdir() if folder.is_dir())
    images: list[np.ndarray] = []
    targets: list[int] = []
    for class_index, kind in enumerate(class_folders):
        for file in sorted(f for f in kind.iterdir() if f.suffix.lower() in IMAGE_SUFFIXES):
            images.append(_read_picture(file))
            targets.append(class_index)
            if images[0].shape != images[-1].shape:
                raise UsageError(
                    f"--data {path}: {file} is {list(images[-1].shape)} and the first picture is "
                    f"{list(images[0].shape)}, but all pictures must have the same size and colours; convert them: "
                    f"magick mogrify -resize '{images[0].shape[2]}x{images[0].shape[1]}!' "
                    f"-colorspace {'Gray' if len(images[0]) == 1 else 'sRGB -type TrueColor'} {path}/*/*",
                    kind="other-size",
                    subject=file,
                    value=images[-1].shape,
                    allowed=images[0].shape,
                )
    if not images:
        raise UsageError(
            f"--data {path}: this folder has no pictures; name a folder with one subfolder of pictures "
            f"({', '.join(IMAGE_SUFFIXES)}) for each class",
            kind="no-pictures",
            subject=path,
        )
    return own_data(np.stack(images), np.asarray(targets, np.int32), str(path))


def _read_picture(file: Path) -> np.ndarray:
    try:
        if file.suffix == ".npy":
            array = np.load(file, allow_pickle=False)
        else:
            from PIL import Image

            image = Image.open(file)
            array = np.asarray(image.convert("L" if image.mode in ("1", "L", "I", "F", "I;16") else "RGB")) / 255.0
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--data: {file} cannot be read: {error}; remove the file, or save the picture again",
            kind="unreadable",
            subject=file,
            cause=error,
        ) from None
    planes = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    return np.ascontiguousarray(planes, np.float32)
