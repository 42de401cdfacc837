"""Everything in this folder is a whole run, or what one is made of in other processes."""

from fork_server import warm_children

__all__ = ["warm_children"]  # a fixture
