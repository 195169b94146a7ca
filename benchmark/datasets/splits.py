"""Check the arrays of a user's dataset: errors name the array, and remarks describe the accepted data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from defenses.errors import BadInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Images = NDArray[np.uint8] | NDArray[np.float32]
    Labels = NDArray[np.int64]
    Split = tuple[Images, Labels]

KEYS = ("x_train", "y_train", "x_test", "y_test")
"""The names that Keras uses."""
NAMES = "class_names"
"""Optional: a name for each class, in their order."""
LONGEST_NAME = 100
FEWEST_CLASSES = 2


@dataclass(frozen=True, eq=False)
class Splits:
    """The two parts of a dataset, channels first: bytes, or float32 in [0, 1]."""

    train: Split
    """Empty if the dataset can only be evaluated."""
    test: Split
    classes: int
    names: tuple[str, ...]
    remarks: tuple[str, ...]
    """Remarks for a user who trains on it."""

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.test[0].shape[1:]
        return channels, height, width

    @property
    def levels(self) -> int:
        """The pixel value that means 1.0."""
        return 255 if self.test[0].dtype.kind == "u" else 1

    @property
    def checksum(self) -> str:
        """sha256 of all images and labels, with their types and shapes."""
        digest = hashlib.sha256()
        for values in (*self.train, *self.test):
            digest.update(f"{values.dtype} {values.shape} ".encode())
            digest.update(values.reshape(-1).data)
        return digest.hexdigest()


def read_splits(found: Mapping[str, Any], where: str) -> Splits:
    """Check named arrays and return the splits; ``where`` names their source in messages."""
    import numpy as np

    for key in ("x_test", "y_test"):
        if key not in found:
            held = ", ".join(map(str, found)) or "nothing"
            raise BadInput(f"{where} has no {key}; it must contain {', '.join(KEYS)} (it contains {held})")
    has_train = [key for key in ("x_train", "y_train") if key in found]
    if len(has_train) == 1:
        missing = "y_train" if has_train == ["x_train"] else "x_train"
        raise BadInput(f"{where} has {has_train[0]} but no {missing}; give both, or neither for evaluation only")
    test, order = _images(found["x_test"], f"x_test of {where}")
    labels = _labels(found["y_test"], len(test), f"y_test of {where}")
    if has_train:
        train, train_order = _images(found["x_train"], f"x_train of {where}")
        train_labels = _labels(found["y_train"], len(train), f"y_train of {where}")
        if (train.dtype, train.shape[1:]) != (test.dtype, test.shape[1:]):
            raise BadInput(
                f"{where}: training images are {_kind(train)} and test images {_kind(test)}; make them the same"
            )
        if train_order != order:
            raise BadInput(f"{where}: x_train is {train_order} and x_test {order}; make them the same")
        if len(train) < 2:
            raise BadInput(f"x_train of {where} has {len(train)} image; training needs at least 2")
    else:
        train, train_labels = test[:0], labels[:0]
    names = _names(found.get(NAMES), where)
    classes = _count_classes(train_labels, labels, names, where)
    remarks = [f"x_test is read as {order}"] if order else []
    if not has_train:
        remarks.append("it has no training part, so it can only be evaluated")
    for part, some in (("training", train_labels), ("test", labels)):
        absent = sorted(set(range(classes)) - set(np.unique(some).tolist())) if len(some) else []
        if absent:
            shown = ", ".join(names[label] if names else str(label) for label in absent[:10])
            more = f" and {len(absent) - 10} more" if len(absent) > 10 else ""
            remarks.append(f"no {part} image has class {shown}{more}")
    return Splits((train, train_labels), (test, labels), classes, names, tuple(remarks))


def _images(values: Any, what: str) -> tuple[Images, str]:
    """Images with channels first, as bytes or float32 in [0, 1], and the original order of their axes."""
    import numpy as np

    images = np.asarray(values)
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise BadInput(f"{what} has type {images.dtype}; give bytes (uint8) or floats in [0, 1]")
    if images.ndim not in (3, 4):
        raise BadInput(f"{what} has shape {images.shape}; give images as (N, H, W, C), (N, C, H, W) or (N, H, W)")
    if 0 in images.shape:
        raise BadInput(f"{what} is empty: its shape is {images.shape}; give at least one image")
    images, order = _channels_first(images)
    low, high = images.min(), images.max()
    if images.dtype == np.uint8:
        if high <= 1:
            raise BadInput(f"{what} has bytes from {low} to {high}; bytes should span 0 to 255; save floats instead")
        return np.ascontiguousarray(images), order
    if not (low >= 0 and high <= 1):  # also true for NaN
        raise BadInput(f"{what} ranges from {low:g} to {high:g}; give floats in [0, 1], or bytes")
    return np.ascontiguousarray(images, dtype=np.float32), order


def _channels_first(images: NDArray[Any]) -> tuple[NDArray[Any], str]:
    """Move the channels first: two equal axes are height and width; otherwise the channel axis is the shorter one.

    An ambiguous shape is read in the order of Keras.
    """
    if images.ndim == 3:
        return images[:, None], "(N, H, W)"
    first, middle, last = images.shape[1:]
    if first == middle != last:
        first_is_channels = False
    elif middle == last != first:
        first_is_channels = True
    else:
        first_is_channels = first < last
    if first_is_channels:
        return images, "(N, C, H, W)"
    return images.transpose(0, 3, 1, 2), "(N, H, W, C)"


def _labels(values: Any, images: int, what: str) -> Labels:
    import numpy as np

    labels = np.asarray(values)
    if labels.ndim == 2 and labels.shape[1] == 1:  # as in Keras' CIFAR
        labels = labels[:, 0]
    if labels.ndim != 1 or len(labels) != images:
        raise BadInput(f"{what} has shape {labels.shape} for {images} images; give one class per image")
    if labels.dtype.kind not in "iu":
        raise BadInput(f"{what} has type {labels.dtype}; give integers from 0")
    if labels.min() < 0 or labels.max() > np.iinfo(np.int64).max:
        raise BadInput(f"{what} goes from {labels.min()} to {labels.max()}; number the classes from 0")
    return labels.astype(np.int64)


def _names(values: Any, where: str) -> tuple[str, ...]:
    import numpy as np

    if values is None:
        return ()
    if isinstance(values, np.ndarray):
        if values.ndim != 1 or values.dtype.kind not in "US":
            raise BadInput(f"{NAMES} of {where} has type {values.dtype} and shape {values.shape}; give a list of texts")
        values = values.tolist()
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise BadInput(f"{NAMES} of {where} is a {type(values).__name__}; give a list of texts")
    names = tuple(name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in values)
    for name in names:
        if not name.strip() or len(name) > LONGEST_NAME or not _is_text(name):
            raise BadInput(f"{NAMES} of {where} has {name[:40]!r}; a name has 1 to {LONGEST_NAME} characters")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadInput(f"{NAMES} of {where} has {twice!r} twice; give each class its own name")
    return names


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _count_classes(train: Labels, test: Labels, names: tuple[str, ...], where: str) -> int:
    largest = max(int(labels.max()) for labels in (train, test) if len(labels))
    if names and largest >= len(names):
        raise BadInput(f"{where} has a label {largest} and {len(names)} {NAMES}; labels go from 0 to {len(names) - 1}")
    classes = len(names) or largest + 1
    if classes > len(train) + len(test):
        words = f"{where} has a label {largest} and {len(train) + len(test)} images" if not names else where
        raise BadInput(f"{words}: there are more classes ({classes}) than images; number the classes from 0")
    if classes < FEWEST_CLASSES:
        raise BadInput(f"{where} has {classes} class; a classifier needs at least {FEWEST_CLASSES}")
    return classes


def _kind(images: Images) -> str:
    return f"{images.dtype} of {'×'.join(map(str, images.shape[1:]))}"
