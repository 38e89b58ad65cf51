"""Data: readers for the official files, declared scales, and random views of images.

Nothing here computes a statistic of the data that it reads: constants, ranges and categories are published or
declared.
"""

from saltflat.core.sampling import DatasetUnits, TensorUnits
from saltflat.data.arrays import KERAS, MEDMNIST, npz
from saltflat.data.augment import Augment, Cutout, Flip, PadCrop, augment
from saltflat.data.digits import digits
from saltflat.data.examples import CIFAR, HALF, IMAGENET, MNIST, SVHN, UNIT, Examples, Scale, Split
from saltflat.data.form import Form
from saltflat.data.own import Own, is_own, own_form, own_split, read_table
from saltflat.data.pictures import image_folder
from saltflat.data.registry import NAMES, load, official_form, official_size
from saltflat.data.table import ADULT, Category, Number, Table, csv_table

__all__ = [  # noqa: RUF022 (reading first, then scales, then views)
    "load",
    "NAMES",
    "official_size",
    "official_form",
    "Form",
    "digits",
    "Examples",
    "TensorUnits",
    "DatasetUnits",
    "Split",
    "npz",
    "KERAS",
    "MEDMNIST",
    "image_folder",
    "csv_table",
    "Own",
    "is_own",
    "own_form",
    "own_split",
    "read_table",
    "Table",
    "Number",
    "Category",
    "ADULT",
    "Scale",
    "UNIT",
    "HALF",
    "MNIST",
    "CIFAR",
    "SVHN",
    "IMAGENET",
    "augment",
    "Augment",
    "PadCrop",
    "Flip",
    "Cutout",
]
