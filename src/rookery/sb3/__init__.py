"""Stable-Baselines3 (SB3): runs of its algorithms, and shared and prioritized replay buffers.

Modules: `backend` (starts an SB3 run in place of Rookery's own training loop), `sb3_run` (a run's
events, evaluations and checkpoints), `learn_iterator` (SB3's `learn()` as an iterator), `models`
(builds SB3's algorithms from settings), `model_state` and `replay_rows` (what a checkpoint holds);
`shared_buffer` (a replay buffer for SB3 from which other runs can sample), `prioritized` (SB3's
algorithms with prioritized replay).
"""
