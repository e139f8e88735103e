"""Data: imbalanced datasets by name, one's own files, and their images on the training device.

:func:`load` gives a :class:`Dataset` of three splits, from a name of :func:`recipes` or from a path;
:func:`gaussian_classes` makes one up. :class:`DeviceData` serves a split as normalized batches.
:class:`Preprocessing` is what a trained model needs to use new data, which :func:`load_new` reads.
:func:`contact_sheet` draws examples of every class.
"""

from classgrad.data._dataset import Dataset, Split
from classgrad.data._device import DeviceData
from classgrad.data._gaussian import gaussian_classes
from classgrad.data._load import load
from classgrad.data._own import Examples, load_new
from classgrad.data._preprocessing import Column, Preprocessing
from classgrad.data._recipes import Recipe, recipes
from classgrad.data._sheet import contact_sheet

__all__ = [
    "Column",
    "Dataset",
    "DeviceData",
    "Examples",
    "Preprocessing",
    "Recipe",
    "Split",
    "contact_sheet",
    "gaussian_classes",
    "load",
    "load_new",
    "recipes",
]
