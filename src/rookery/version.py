"""The library's version, which is also written into checkpoints and other files."""

__version__ = "0.1.0"
