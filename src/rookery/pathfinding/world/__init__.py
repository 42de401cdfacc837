"""The grid world of multi-agent path finding.

- Problem instances (maps, starts, goals): `cases`, `maps` (random), `map_text` (files).
- Rules and rewards: `rules`, `collisions`.
- Batched simulators: `worlds` (numba, CPU), `device_worlds` (torch, GPU).
- Observations: `views`, `distance_fields`, `flood_fill`. Results of episodes: `episode_measures`.
- Environments: `team_env` (Gymnasium), `parallel_env` (PettingZoo), `pogema_env` (POGEMA).
- `curriculum`: growing team and map sizes. `world_image`: an image of a world.
"""
