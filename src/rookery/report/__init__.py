"""What users see of runs: events in; files, panels, comparisons and pages out.

    training process                 evaluation process
    Meter: events → Logged    ──▶    Sinks: jsonl · csv · timeline · TensorBoard · W&B · console
    Trace: spans → Traced     ──▶

Of this room, processes that train need `metrics/` alone; everything heavy is imported by the sink
that uses it, when it is opened. During a run and after it, `statistics/` reads what the sinks have
written, and `charts/` makes pages of it.
"""
