"""Environments: found, checked, put side by side and spoken to in one stored form."""
