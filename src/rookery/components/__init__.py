"""Components: the parts of a run as objects that are put together by hand.

    environment = DistributedEnvironment("CartPole-v1", num_workers=4)
    replay_buffer = ReplayBufferPool(num_buffers=4)
    agent = DistributedAgent("dqn", env="CartPole-v1")
    MainLoop(environment, replay_buffer, agent).run_training(total_episodes=300)

Each of them is made of parts that runs are made of too, and each can be replaced by an object of
yours with the same methods: `protocols.py` says which of them a loop calls.

In the order of reading: `protocols`, `experience`, `environment` (with `custom_policy`),
`replay_buffers`, `agents`; `main_loop` and `loop_parts`, which puts components in the places of a
run's parts; `async_loop`, `cluster_loop`; `reporting`.
"""
