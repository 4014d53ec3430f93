"""cflkit: a notebook-first kit to teach and to reproduce clustered federated learning.

Which room holds what:

- `datasets`, `partition`: image sets by name, and recipes that give each client its samples;
- `models`: the papers' networks by name; `models.rows` has a model as a row of numbers;
- `federation`: clients that train and evaluate, and the requests that methods send to them;
- `methods`: one file per algorithm, each as its pseudocode; `methods.baselines` has the others;
- `divergence`, `clustering`, `metrics`: distances of clients, clusterers, measures of clusters;
- `simulation`: the loop over rounds, all methods in lockstep; `explain`, `plots`: maps and figures;
- `reproduce`: papers, parameters, records, grids, the ledger, and the command line;
- `course` and `check`: exercises and their checks; `flower`: clients that are elsewhere;
- `groups`, `compare`: whether clients have groups at all, and how a new method does.
"""

import os

__version__ = "0.4.0"

# PyTorch then asks Linux for large pages, before its first tensor and for tensors of 2 MiB or more.
# Otherwise a network of 25 million parameters spends a quarter of each step on fresh small pages
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
