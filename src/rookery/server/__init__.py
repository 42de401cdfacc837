"""The parameter server: clients push gradients or changes of weights, and pull new parameters.

The server as an object: `parameter_server` (gradients), `federated` (clients that train for a while
before they push), `server_rules` (its settings), `aggregate` (many updates become one),
`optimizer_step`, `flat_layout` (named arrays as one vector), `server_state` (with its workers and
their quarantine), `store` and `file_lock` (what survives a kill -9).

As a command: `run_server` and `serve_report` (`rookery serve`), `advertised_settings` (what clients
take from a server), `run_client` and `gradient_worker` (`rookery join`). On the network: `http/`.
Private clients: `privacy/`.
"""
