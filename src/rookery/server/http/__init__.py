"""The parameter server on the network.

`service` (starts it), `routes`, `connection`, `access` and `client_keys` (who may speak), `limits`,
`message_handler`, `wire_format`, `tensor_bytes`, `compression`, `request_body`, `refusals`,
`parameter_cache`, `version_watch` (requests that wait), `prometheus` (metrics); `remote_server` is
the client.
"""
