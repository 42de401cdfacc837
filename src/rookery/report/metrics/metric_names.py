"""The names of metrics: those of Stable-Baselines3 where it has one, ours beside them.

A key of `Learned.metrics` becomes train/<key>, a key of an episode's info rollout/<key>, unless it
is that of a curriculum.
"""

import math
from collections.abc import Mapping

from rookery.event import Evaluated

KNOWN = (
    "rollout/ep_rew_mean",
    "rollout/ep_len_mean",
    "rollout/success_rate",
    "rollout/exploration_rate",
    "eval/mean_reward",
    "eval/mean_ep_length",
    "eval/success_rate",
    "time/fps",
    "time/episodes",
    "time/time_elapsed",
    "time/total_timesteps",
    "time/learner_steps_per_s",
    "train/loss",
    "train/n_updates",
    "train/learning_rate",
    "replay/fill",
    "replay/samples_per_insert",
    "actors/policy_lag",
    "system/cpu_percent",
    "system/memory_mb",
)


def named(key: str) -> str:
    """Returns the metric name for a key of an episode's info."""
    if key.startswith("curriculum/"):
        return key
    return "rollout/success_rate" if key == "is_success" else f"rollout/{key}"


def finite(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Drops metrics that are None, NaN or infinite: a missing value is absent, never NaN."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if value is not None and math.isfinite(value)
    }


def evaluation(event: Evaluated) -> dict[str, float]:
    """Returns the results of an evaluation by metric name."""
    return finite(
        {
            "eval/mean_reward": event.score,
            "eval/mean_ep_length": sum(event.lengths) / len(event.lengths),
            "eval/success_rate": event.success_rate,
            "eval/elo": event.elo,
            "eval/elo_deviation": event.elo_deviation,
        }
    )
