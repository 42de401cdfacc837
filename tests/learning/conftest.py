"""Everything in this folder trains; actor processes are forked from one that has imported torch."""

from fork_server import warm_children

__all__ = ["warm_children"]  # a fixture
