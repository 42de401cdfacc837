"""Evaluation: greedy episodes with a snapshot of the weights, in a separate process.

`evaluator` (plays episodes), `evaluation_process` (evaluates snapshots and writes reports),
`evaluation_client` (sends snapshots from the training process), `evaluate_run` and `record_run`
(evaluate or film a finished run), `backend` (runs trained by another library).
"""
