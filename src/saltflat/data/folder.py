"""A folder of images of the user's: pictures by class, or idx files, for training (private) and for testing (public).

*Guarantee*: what is known before private images are read, their shape and the number of classes, comes from the public
part: from the head of a test picture and the names of the test folders, or from the test files.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from saltflat.data.examples import HALF, Examples, Split
from saltflat.data.files import Labelled
from saltflat.data.form import Form
from saltflat.data.idx import read_idx
from saltflat.data.pictures import class_folders, image_folder, picture_files, picture_form
from saltflat.errors import DataError

PARTS = ("train", "test")
TEST_WORDS = ("t10k", "test")  # either may be in the names of idx files for testing


def folder_form(path: Path, classes: int | None = None) -> Form:
    """The form of its images, from the part for testing; ``classes`` where they are declared."""
    if _has_pictures(path):
        names = class_folders(path / "test")
        files = picture_files(path / "test", names)
        if not files:
            raise DataError(
                f"{path / 'test'} holds no picture; their form is taken from there, as it is public"
            )
        return Form(picture_form(files[0][0]), _agreed(classes, len(names), path))
    images, labels = _idx(path, "test")
    return Form(tuple(images.shape[1:]), _agreed(classes, int(labels.max()) + 1, path))


def folder_split(path: Path, classes: int | None = None) -> Split:
    """Its images as uint8: all in the form of those for testing, pictures resized to it."""
    form = folder_form(path, classes)
    if _has_pictures(path):
        channels, height, width = form.shape
        return image_folder(path, size=(height, width), grey=channels == 1)
    train, test = (Examples(*_idx(path, part), HALF) for part in PARTS)
    return Split(train, test, form.classes)


def folder_class_names(path: Path) -> tuple[str, ...]:
    """The names of the public test part's class folders; none where idx files number the classes."""
    return tuple(class_folders(path / "test")) if _has_pictures(path) else ()


def _has_pictures(path: Path) -> bool:
    """Whether it has pictures by class; a folder of neither kind is refused."""
    if all((path / part).is_dir() for part in PARTS):
        return True
    if not any(path.glob("*ubyte*")):
        raise DataError(
            f"{path} holds no images as they are read here: put pictures into train/<class>/ and test/<class>/, or idx "
            "files there, train-images-idx3-ubyte and t10k-images-idx3-ubyte with their labels"
        )
    return False


def _agreed(declared: int | None, found: int, path: Path) -> int:
    """How many classes there are; more may be declared than the public part shows."""
    if declared is not None and declared < found:
        raise DataError(f"{path}: {declared} classes are declared, and the part for testing has {found}")
    return declared or max(2, found)


def _idx(path: Path, part: str) -> Labelled:
    """Images (n, channels, height, width) and labels of a part."""
    words = ("train",) if part == "train" else TEST_WORDS
    images, labels = (read_idx(_file(path, words, kind), *sizes) for kind, sizes in _KINDS.items())
    if len(images) != len(labels):
        raise DataError(f"{path}: each image of the {part} files needs one label")
    return _channels_first(images, path), labels.long()


_KINDS = {"images": (3, 4), "labels": (1,)}  # the dimensions that a file of each kind may have


def _file(path: Path, words: tuple[str, ...], kind: str) -> Path:
    """The only file whose name has the kind and one of the words."""
    found = [
        file
        for file in sorted(path.glob("*ubyte*"))
        if kind in file.name and any(word in file.name for word in words)
    ]
    if len(found) != 1:
        said = ", ".join(file.name for file in found) or "none"
        raise DataError(
            f"{path} needs one idx file whose name has {' or '.join(words)}, {kind} and ubyte in it; it has {said}"
        )
    return found[0]


def _channels_first(images: Tensor, path: Path) -> Tensor:
    """(n, h, w), (n, h, w, c) or (n, c, h, w) with 1 or 3 channels as (n, c, h, w)."""
    if images.dim() == 3:
        return images.unsqueeze(1)
    if images.shape[3] in (1, 3):
        return images.permute(0, 3, 1, 2).contiguous()
    if images.shape[1] in (1, 3):
        return images
    raise DataError(f"{path}: idx images of four dimensions have 1 or 3 channels, last or second")
