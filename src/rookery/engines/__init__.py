"""Engines: where roles live. `processes` gives a role a process of its own on this host."""
