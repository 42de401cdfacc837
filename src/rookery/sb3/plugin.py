"""Plugin that registers Stable-Baselines3 as a training backend (setting `backend: sb3`)."""

from rookery.plugins import BackendNames, Plugin

SETTINGS = (  # that a run uses, in the schema's order
    "name",
    "about",
    "backend",
    "sb3",
    "run.seed",
    "run.env_steps",
    "run.episodes",
    "run.minutes",
    "run.run_dir",
    "run.callbacks",
    "env.id",
    "env.kwargs",
    "env.wrappers",
    "env.imports",
    "env.max_episode_steps",
    "env.check",
    "replay.capacity",
    "actor.env_step_timeout_s",
    "learner.device",
    "learner.threads",
    "sharing",
    "checkpoint",
    "eval.period",
    "eval.episodes",
    "eval.target",
    "eval.kwargs",
    "eval.timeout_s",
    "eval.max_restarts",
    "eval.queue",
    "eval.record",
    "report",
)

PLUGIN = Plugin(backends={"sb3": BackendNames("rookery.sb3.backend:BACKEND", SETTINGS)})
