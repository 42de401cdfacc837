"""Training runs whose actors and replay buffer are spread over the hosts of a Ray cluster.

In the learner's process: `cluster_group` (all hosts of the run), `host_handle` (one host),
`remote_replay` (samples batches from the replay shards, the parts of the replay buffer on the
hosts, and restores a lost shard from a checkpoint). On each host: `host_worker` (its
actors and its shard of replay). Further: `messages` (control messages and answers), `peers`
(samples from other runs' replay buffers), `remote_run` (starts a whole run on the host that has the
GPU).
"""
