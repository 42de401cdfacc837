"""Central inference: one server process chooses actions for all actor processes, as in SEED RL.

`slots` (shared memory for observations and actions), `inference_server`, `inference_client` (used
by an actor in place of a network), `server_supervision` (starts and restarts the server).
"""
