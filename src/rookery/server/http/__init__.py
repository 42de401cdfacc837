"""The parameter server on the network.

`service` (starts it; its pages), `message_handler`, `connection`, `network` (addresses, TLS),
`access` and `client_keys` (which clients are let in), `limits`, `wire_format`, `tensor_bytes`,
`compression`, `prometheus` (metrics and refusals); `remote_server` is the client.
"""
