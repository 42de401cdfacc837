"""Python API: `rookery.train`, `load`, `events`, `train_dqn`, and a class for each algorithm.

Modules: `runs` (train, events, load), `agent` (an algorithm with its settings in an environment),
`algorithm_agents` (`SAC`, `PPO`, ...), `arguments`
(which settings arguments stand for), `train_dqn` and its agent `dqn_agent`, `rollout_worker`
(plays whole episodes with a policy), `trajectories` (episodes as arrays).
"""
