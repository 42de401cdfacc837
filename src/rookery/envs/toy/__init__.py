"""Toy environments with a known optimum, for tests.

`basic` (Corridor, Echo, Reach, ...), `recall` (needs memory), `bit_flip` (needs hindsight
relabelling), `orchard` (image observations).
"""
