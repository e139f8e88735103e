"""Sphinx settings: `make docs`."""

from classgrad import __version__

project = "classgrad"
author = "The classgrad developers"
copyright = author
release = version = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx-mathjax-offline",
]
myst_enable_extensions = ["dollarmath", "amsmath", "deflist"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"classgrad {release}"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
