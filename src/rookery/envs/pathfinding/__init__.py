"""Many agents on a grid, each with a goal of its own, in each other's way.

rules.py    what agents may do, what they see and what it earns them
cases.py    a map, starts and goals: what is given before the first step
worlds.py   many worlds at once, compiled
device.py   the same on a GPU, in torch
"""
