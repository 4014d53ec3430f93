"""Named image sets as tensors, from scikit-learn, the user's folder, the cache, or a download.

``load("digits")`` needs no network, since the images are part of scikit-learn. `files` describes
how every other set is found or downloaded, `named` how each is read, and `own_data` which data of
one's own may be loaded by their path.
"""

from cflkit.datasets import named, own_data
from cflkit.datasets.files import DatasetError
from cflkit.datasets.files import roots as roots
from cflkit.datasets.images import ImageSet


def names() -> list[str]:
    """Return every name that `load` knows."""
    return sorted(named.SETS)


def load(name: str) -> ImageSet:
    """Load one of `names`, or data of one's own by their path (see `own_data`).

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
