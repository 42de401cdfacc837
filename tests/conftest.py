"""Shared by all tests. The first call of a compiled kernel may compile it: no example has a
deadline, and what hypothesis tries is the same in every run."""

from hypothesis import settings

settings.register_profile("rookery", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("rookery")
