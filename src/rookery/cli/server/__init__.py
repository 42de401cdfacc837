"""Verbs of the parameter server: `serve`, its clients' keys, and `join`."""
