"""Named image sets as tensors, from scikit-learn, the user's folder, the cache, or a download.

``load("digits")`` needs no network, since the images are part of scikit-learn. `files` describes
how every other set is found or downloaded, `named` how each is read, and `own_data` which data of
one's own may be loaded by their path.
"""

from cflkit.datasets import own_data
from cflkit.datasets.files import DatasetError, roots
from cflkit.datasets.images import ImageSet
from cflkit.datasets.named import load, names

__all__ = ["DatasetError", "ImageSet", "load", "names", "own_data", "roots"]
