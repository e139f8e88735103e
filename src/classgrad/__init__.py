"""classgrad: learning under class imbalance with the gradients of the classes."""

from classgrad._version import __version__

__all__ = ["__version__"]
