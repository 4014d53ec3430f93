"""cflkit: a notebook-first kit to teach and to reproduce clustered federated learning."""

import os

__version__ = "0.2.0"

# PyTorch then asks Linux for large pages, before its first tensor and for tensors of 2 MiB or more.
# Otherwise a network of 25 million parameters spends a quarter of each step on fresh small pages
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
