"""Events in, things people see out.

    training process                 evaluation process
    Meter: events → Logged    ──▶    Sinks: jsonl · csv · timeline · TensorBoard · W&B · console
    Trace: spans → Traced     ──▶

`meter` and `trace` are the only files the processes that train need; everything heavy is imported
by the sink that uses it, when it is opened. What the timeline's sink wrote, `lanes` reads and
`gantt`, `perfetto` and `flow` draw, after the run or while it goes on.
"""
