"""Python API: `rookery.train`, `load`, `events` and `train_dqn`.

Modules: `runs` (train, events, load), `train_dqn` and its agent `dqn_agent`, `rollout_worker`
(plays whole episodes with a policy), `trajectories` (episodes as arrays).
"""
