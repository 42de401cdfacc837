"""A centralized MAPF planner that knows the whole map: LaCAM with PIBT.

- `plan`: plans problem instances. `lacam`: the search. `shorten`: lowers the cost of a plan.
- `pibt`, `swap`: one collision-free step of all agents. `grid_graph`: the map as a graph.
- `shield`: replaces colliding actions of a learned policy.
- `planner_pool`, `advice`: planning in separate processes, for imitation learning.
"""
