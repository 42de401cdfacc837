"""Multi-agent path finding (MAPF) on grids: a team of agents that exchange messages.

- `world/`: rules, maps and environments.
- `team_network`, `team_dqn`, `settings`: the Q-network, the algorithm and its settings.
- `team_actor`, `curriculum_actors`: actors that step many parallel grid worlds on a GPU.
- `batched_env`: builds these actors for `run.mode device` (worlds and replay on one GPU).
- `planner/`, `teacher`: a MAPF planner, and imitation learning from its plans.
- `evaluation/`, `pictures/`: success rates and costs of policies; animations of episodes.
- `verb`: the command `rookery pathfinding`. `scenarios/`: ready-made settings of runs.
- `plugin`: registers the command, the algorithm and the settings with the library.
"""
