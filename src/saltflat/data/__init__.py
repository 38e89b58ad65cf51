"""Data: readers for the official files, declared scales, and random views of images.

Nothing here computes a statistic of the data that it reads: constants, ranges and categories are published or
declared.
"""

from saltflat.core.sampling import DatasetUnits, TensorUnits
from saltflat.data import text
from saltflat.data.arrays import KERAS, MEDMNIST, npz
from saltflat.data.augment import Augment, Cutout, Flip, Jitter, PadCrop, Zoom, augment
from saltflat.data.digits import digits
from saltflat.data.examples import CIFAR, HALF, IMAGENET, MNIST, SVHN, UNIT, Examples, Scale, Split
from saltflat.data.form import Form
from saltflat.data.new_rows import NewRows, read_new_rows
from saltflat.data.own import (
    Own,
    is_folder,
    is_own,
    is_own_by_name,
    kind_of,
    own_form,
    own_split,
    read_table,
)
from saltflat.data.parquet import parquet
from saltflat.data.pictures import image_folder
from saltflat.data.policy import AutoAugment
from saltflat.data.preprocessing import Preprocessing, preprocessing_of
from saltflat.data.registry import NAMES, is_text, load, official_form, official_size
from saltflat.data.sharing import Shared, shared
from saltflat.data.stored import Stored, on_disk
from saltflat.data.table import ADULT, Array, Category, Number, Table, csv_table
from saltflat.data.text import Authors, Vocabulary

__all__ = [  # noqa: RUF022 (reading first, then scales, then views)
    "load",
    "NAMES",
    "official_size",
    "official_form",
    "is_text",
    "text",
    "Vocabulary",
    "Authors",
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
    "on_disk",
    "parquet",
    "Stored",
    "Own",
    "is_own",
    "is_own_by_name",
    "is_folder",
    "kind_of",
    "own_form",
    "own_split",
    "read_table",
    "Preprocessing",
    "preprocessing_of",
    "NewRows",
    "read_new_rows",
    "Table",
    "Number",
    "Category",
    "Array",
    "ADULT",
    "Shared",
    "shared",
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
    "Zoom",
    "Jitter",
    "AutoAugment",
]
