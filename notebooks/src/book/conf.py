"""Sphinx's configuration of the book, see ``build.py``."""

import os
from importlib.util import find_spec
from pathlib import Path

from cflkit import __version__

project = "cflkit"
author = "the authors of cflkit"
release = version = __version__
# The public address of the project. Without one, there are no buttons that need it
repository = os.environ.get("CFLKIT_REPOSITORY", "").rstrip("/")

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.githubpages",
    "sphinx_copybutton",
]
nb_execution_mode = "off"  # the book shows what is committed
nb_merge_streams = True
nb_render_markdown_format = "myst"  # outputs have tables, too
myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 4
numpydoc_show_class_members = False
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_typehints = "description"
autodoc_member_order = "bysource"
templates_path = ["templates"]
exclude_patterns: list[str] = []

# MathJax lies in the site, so that formulas need no network or other server. Its files come from
# a package whose extension we do not use, since it would forbid Sphinx to work in parallel
html_static_path = [str(Path(find_spec("sphinx-mathjax-offline").origin).parent / "static")]
mathjax_path = "mathjax/tex-chtml.js"

html_search_scorer = str(Path(__file__).parent / "scorer.js")

html_theme = "sphinx_book_theme"
html_title = "cflkit: clustered federated learning"
html_show_sphinx = False
html_theme_options = {
    "repository_url": repository,
    "use_repository_button": bool(repository),
    "use_issues_button": bool(repository),
    "show_toc_level": 2,
}
# The header of each page has the search already
html_sidebars = {"**": ["navbar-logo.html", "icon-links.html", "sbt-sidebar-nav.html"]}
# Docstrings name things as readers know them, and not always by their full path
suppress_warnings = ["ref.python", "mystnb.unknown_mime_type", "myst.header", "toc.not_included"]
