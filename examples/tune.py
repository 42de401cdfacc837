"""Two learning rates side by side with Ray Tune: a trial calls `rookery.train`, nothing more.

pip install 'rookery[tune]'
python examples/tune.py
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

import rookery

OVERRIDES = ["run.env_steps=3000", "eval.target=null", "report.tensorboard=false"]


def trial(params: dict[str, float]) -> None:
    """Trains in the trial's own process, one actor inside, and reports its best evaluation."""
    run = rookery.train(
        "corridor",
        seed=1,
        overrides=[*OVERRIDES, f"learner.lr={params['lr']}"],
        run_dir="run",  # in the folder that Tune gives to each trial
    )
    tune.report({"best_score": run.answer["best_score"]})


def search(folder: str) -> None:
    """Tries each rate with one CPU."""
    tuner = tune.Tuner(
        tune.with_resources(trial, {"cpu": 1}),
        param_space={"lr": tune.grid_search([1e-6, 3e-3])},
        tune_config=tune.TuneConfig(metric="best_score", mode="max"),
        run_config=tune.RunConfig(name="lr", storage_path=folder, verbose=0),
    )
    results = tuner.fit()
    for result in results:
        if result.error:
            raise result.error
        print(f"lr {result.config['lr']:g}: best score {result.metrics['best_score']:.2f}")
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
