"""Where events are written: `sinks` (all of them), `jsonl`, `csv`, `tensorboard`, `wandb`,
`timeline_file`; `whole_lines`, `follow` and `rewind` (a resumed run cuts its files back).
"""
