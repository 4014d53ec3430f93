"""Named image sets as tensors, from scikit-learn, the user's folder, the cache, or a download.

``load("digits")`` needs no network, since the images are part of scikit-learn. `files` describes
how every other set is found or downloaded, `named` how each is read, and `own_data` which data of
one's own may be loaded by their path.
"""

from cflkit.datasets import named, own_data
from cflkit.datasets.files import DatasetError, roots
from cflkit.datasets.images import ImageSet

__all__ = ["DatasetError", "ImageSet", "load", "names", "roots"]


def names() -> list[str]:
    """Return every name that `load` knows."""
    return sorted(named.SETS)


def load(name: str) -> ImageSet:
    """Load an image set by name, or one's own by its path.

    Parameters
    ----------
    name : str
        One of `names`, or the path of an ``.npz`` file or a folder of images (see `own_data`).

    Returns
    -------
    ImageSet

    Raises
    ------
    DatasetError
        The name is unknown, the files were not found and cannot be downloaded, or a file does not
        have its checksum. Incomplete data sets are never returned.
    """
    if name in named.SETS:
        return named.load(name)
    if own_data.is_own(name):
        return own_data.load(name)
    raise DatasetError(own_data.refusal(name, names()))
