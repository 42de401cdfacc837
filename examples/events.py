"""A run is an iterator of events: everything else that watches a run reads the same ones.

python examples/events.py
"""

from collections import Counter

import rookery
from rookery.event import Evaluated, Learned, Logged, Started, Stopped

kinds: Counter[str] = Counter()
losses: list[float] = []

overrides = ["run.env_steps=3000", "algo.target_period=50"]

for event in rookery.events("corridor", seed=0, overrides=overrides):
    kinds[type(event).__name__] += 1
    if isinstance(event, Started):
        print(f"{event.run_dir} on {event.about['device']}; {event.about['estimate']}")
    elif isinstance(event, Learned) and event.counters.learner_steps % 100 == 0:
        losses.append(event.result.metrics["loss"].item())  # a tensor: .item() waits for the device
    elif isinstance(event, Logged):
        print(f"{event.counters}  return {event.metrics.get('rollout/ep_rew_mean', 0.0):.2f}")
    elif isinstance(event, Evaluated):
        print(f"  snapshot of env step {event.counters.env_steps} scored {event.score:.2f}")
    elif isinstance(event, Stopped):
        print(f"{event.reason} after {event.train_s:.1f} s; weights {event.weights_sha256[:12]}")

print(dict(kinds))
print(f"loss, every 100 learner steps: {[round(loss, 4) for loss in losses]}")
