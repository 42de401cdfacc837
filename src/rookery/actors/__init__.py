"""Actors: step environments with the learner's published weights and write rows for replay.

A row is one stored step. Modules, best read in this order: `actor` (steps environments, writes rows
into a ring buffer in shared memory), `worker` (runs an actor, in a process of its own or called by
the learner), `local_group` (all actors of a run on one host: control messages, pausing, restarts),
`env_progress` (environment state that outlives episodes, such as a curriculum level), `policy`
(acting without learning), `inference/` (one inference server that acts for all actors),
`device_group` (environments, actors and replay on one device).
"""
