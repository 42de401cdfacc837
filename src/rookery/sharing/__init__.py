"""Runs that learn from each other's experience."""
