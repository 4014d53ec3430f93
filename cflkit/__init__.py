"""cflkit: a notebook-first kit to teach and to reproduce clustered federated learning."""

__version__ = "0.1.0"
