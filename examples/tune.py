"""Learning rates side by side with Ray Tune, which ends trials early that score less than others.

pip install 'rookery[tune]'
python examples/tune.py

A trial calls `rookery.train` and reports each evaluation. Asynchronous successive halving (ASHA)
ends it at the first evaluation that is worse than those of earlier trials at the same env steps.
"""

import os
import secrets
import tempfile

# Ray looks once, when it is imported; left out, what it does depends on what ran here before.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # of this Ray alone, which ends with us
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

import rookery
from rookery.event import Evaluated, Event

ENV_STEPS = 3_000
OVERRIDES = [
    f"run.env_steps={ENV_STEPS}",
    "eval.target=null",
    "eval.period=500",
    "eval.queue=1",  # training waits for evaluations, else a short trial is over before its first
    "report.tensorboard=false",
]
RATES = [3e-3, 1e-3, 1e-6, 1e-7]


def report(event: Event) -> None:
    """Reports an evaluation. If it is the trial's last one, Tune ends the process here."""
    if isinstance(event, Evaluated):
        tune.report({"score": event.score, "env_steps": event.counters.env_steps})


def trial(params: dict[str, float]) -> None:
    """Trains in the trial's own process, with one actor inside."""
    rookery.train(
        "corridor",
        seed=1,
        overrides=[*OVERRIDES, f"learner.lr={params['lr']}"],
        run_dir="run",  # in the folder that Tune gives to each trial
        callbacks=[report],
    )


def search(folder: str) -> None:
    """Tries two good rates with one CPU each, then two that are far too small."""
    halving = ASHAScheduler("env_steps", max_t=ENV_STEPS, grace_period=500, reduction_factor=2)
    tuner = tune.Tuner(
        tune.with_resources(trial, {"cpu": 1}),
        param_space={"lr": tune.grid_search(RATES)},
        tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=halving),
        run_config=tune.RunConfig(name="lr", storage_path=folder, verbose=0),
    )
    results = tuner.fit()
    for result in results:
        if result.error:
            raise result.error
        last = result.metrics["env_steps"]
        fate = "complete" if last >= ENV_STEPS else "pruned"
        print(f"lr {result.config['lr']:g}: {fate}, score {result.metrics['score']:.2f}")
    print(f"best lr: {results.get_best_result().config['lr']:g}")


with tempfile.TemporaryDirectory(prefix="tune-") as folder:
    ray.init(
        address="local",  # a Ray of its own, whatever else runs on this machine
        num_cpus=2,
        object_store_memory=100_000_000,
        include_dashboard=False,
        logging_level="warning",
        log_to_driver=False,
        _temp_dir=f"{folder}/ray",
    )
    search(f"{folder}/results")
    ray.shutdown()
