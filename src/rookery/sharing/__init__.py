"""Replay shared between runs: part of a run's batch is sampled from other runs' replay buffers.

A pool is a folder in shared memory with the replay ring buffers of several runs on one host. In
order of reading: `registry` (the buffers of a pool), `open_registries` (stops them at the end of
the process), `pool_files`, `compatibility` (properties that must agree), `pool_member` (one run in
the pool of its host), `borrower` (samples from the other runs' buffers), `sample_counts`,
`strategies` (how many env steps from which buffer), `borrowed_rows` (the compiled copy),
`ring_reader` (reads frame stacks and sequences), `mixed_batches` (batches of own and other runs'
steps), `cluster_sharing` (pools on all hosts of a cluster), `run_peers` (implements
`ReplayPeersBuilder`), `launcher` (`rookery share`), `stale_pools` and `cleanup` (`rookery clean`).
"""
