"""Where events are written: `sinks` (all of them), `jsonl`, `csv`, `tensorboard`, `wandb`,
`timeline_file`; `whole_lines` and `rewind` (a resumed run cuts its files back).
"""
