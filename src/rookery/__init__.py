"""Rookery: many actors, one learner, and runs that learn from each other."""

__version__ = "0.1.0"
