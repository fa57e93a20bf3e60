"""A command-line trainer of an encoder-only transformer with a max-pool head, from scratch."""

__version__ = "0.1.0"
