"""A search for a learning rate with Optuna, which ends trials early that score less than others.

pip install 'rookery[tune]'
python examples/tune_optuna.py

Each evaluation of a run is reported to Optuna. A trial whose best score is below the median of the
earlier ones at the same env steps is pruned: the callback asks the run to stop.
"""

import tempfile
from pathlib import Path

import optuna

import rookery
from rookery.event import Ask, Evaluated, Event

OVERRIDES = [
    "run.env_steps=3000",
    "eval.target=null",
    "eval.period=500",
    "eval.queue=1",  # training waits for evaluations, else a short trial is over before its first
    "report.tensorboard=false",
]


def objective(trial: optuna.Trial, folder: Path) -> float:
    """Trains with the rate that Optuna suggests, and returns the best score."""
    lr = trial.suggest_float("lr", 1e-7, 1e-1, log=True)

    def prune(event: Event) -> Ask | None:
        if isinstance(event, Evaluated):
            trial.report(event.score, event.counters.env_steps)
            if trial.should_prune():
                return Ask.STOP
        return None

    run = rookery.train(
        "corridor",
        seed=1,
        overrides=[*OVERRIDES, f"learner.lr={lr}"],
        run_dir=folder / str(trial.number),
        callbacks=[prune],
    )
    if run.answer["reason"] == "callback":
        raise optuna.TrialPruned
    return float(run.answer["best_score"])


def search(folder: Path) -> None:
    """Tries a good rate first, then two that are far too small, then what Optuna suggests."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=0),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=1),
    )
    for lr in (3e-3, 1e-6, 1e-7):
        study.enqueue_trial({"lr": lr})
    study.optimize(lambda trial: objective(trial, folder), n_trials=4)
    for trial in study.trials:
        last = max(trial.intermediate_values)
        print(f"lr {trial.params['lr']:.0e}: {trial.state.name.lower()} after {last:,} env steps")
    print(f"best lr {study.best_params['lr']:g}: best score {study.best_value:.2f}")


with tempfile.TemporaryDirectory(prefix="optuna-") as folder:
    search(Path(folder))
