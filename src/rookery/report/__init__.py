"""Events in, things people see out.

    training process                 manage process
    Meter: events → Logged    ──▶    Sinks: jsonl · csv · TensorBoard · W&B · console

`meter` is the only file the training process needs; everything heavy is imported by the sink
that uses it, when it is opened.
"""
