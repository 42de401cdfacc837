"""Rookery versus other libraries and versus plain loops, measured in one run on one machine.

    python -m benchmarks replay --peers --json    # from the repository root

The command, in the order of reading:

* `command`: flags, exit codes, what is printed
* `bench`: what a benchmark is: contenders, ratios and the values that they have to reach
* `table`, `variants`: the benchmarks by name; those that --actors and --engines make
* `run`: trials, each in a process of its own
* `summary`, `report`: medians, spreads and ratios of the trials; the same as a table

The scripts of a benchmark are in the folder of its name (of `async` in `learn`): a new benchmark is
such a folder and an entry in `table`. `trial.py` times a function of a script, `rows.py` has the
rows that replay buffers store, `floor.py` DQN updates in plain PyTorch. The folders `study`,
`shelf`, `learning` and `soak` have scripts of their own, which `make` runs.
"""
