"""A centralized planner for multi-agent path finding that knows the whole map: LaCAM with PIBT.

- `plan`: plans paths from starts to goals. `lacam`: the search. `shorten`: lowers a plan's cost.
- `pibt`, `swap`: one collision-free step of all agents. `grid_graph`: the map as a graph.
- `shield`: replaces colliding actions of a learned policy.
- `planner_pool`: planning in separate processes, for imitation learning.
"""
