"""The benchmarks by name. Paths are those of scripts in this folder."""

from typing import Any

from benchmarks.bench import Bench, Better, Contender


def _timed(name: str, work: str, **more: Any) -> Contender:
    """Returns a contender timed by `trial.py`; `work` is file:function."""
    return Contender(name=name, command=("trial.py", work), **more)


_DOUBLE = ("floor.py", "--net", "256,256", "--batch", "64", "--double")
_FULL = (*_DOUBLE, "--dueling", "--weights", "--clip")

_MODES = "learn/rookery_modes.py"


def loops(actors: int) -> tuple[Contender, ...]:
    """Returns async with so many actors, the single loop, and a learner without actors."""
    return (
        Contender(name="rookery", command=(_MODES, "async", "--actors", str(actors))),
        Contender(name="single", command=(_MODES, "single"), bar=1.0),
        Contender(name="alone", command=(_MODES, "alone")),
    )


_COST = "share/rookery_cost.py"
_GAMES = ("selfplay/rookery_games.py",)
_SERVICE = ("server/rookery_service.py",)

BENCHES: dict[str, Bench] = {
    "replay": Bench(
        about="prioritised draws of 256 rows with weights and reranking; appends of 100 rows",
        unit="draw: batches/s, append: rows/s",
        contenders=(
            _timed("draw:rookery", "replay/rookery_pool.py:draw"),
            _timed("draw:cpprb", "replay/cpprb_buffer.py:draw", package="cpprb", bar=3.5),
            _timed("draw:tianshou", "replay/tianshou_buffer.py:draw", package="tianshou", bar=2.4),
            _timed("append:rookery", "replay/rookery_pool.py:append"),
            _timed(
                "append:sb3", "replay/sb3_buffer.py:append", package="stable_baselines3", bar=1.0
            ),
            _timed("append:cpprb", "replay/cpprb_buffer.py:append", package="cpprb"),
        ),
    ),
    "collect": Bench(
        about="CartPole, 64 environments, network 2x64, rows written; raw is env.step alone",
        unit="env steps/s",
        contenders=(
            _timed("rookery", "collect/rookery_actor.py:collect"),
            _timed("raw", "collect/raw_env.py:step", bar=0.25),
        ),
    ),
    "learn": Bench(
        about="learner steps 2x256, batch 64 (SAC 256), drawn from replay; the floor has ready "
        "tensors",
        unit="learner steps/s",
        contenders=(
            _timed("double:rookery", "learn/rookery_learner.py:double"),
            _timed("double:sb3", "learn/sb3_dqn.py:learn", package="stable_baselines3"),
            Contender(name="double:floor", command=_DOUBLE, bar=0.85),
            _timed("full:rookery", "learn/rookery_learner.py:full"),
            Contender(name="full:floor", command=_FULL, bar=0.85),
            _timed("sac:rookery", "learn/rookery_learner.py:sac"),
            _timed("sac:floor", "learn/floor_sac.py:learn", bar=0.95),
        ),
    ),
    "async": Bench(
        about="learner steps in whole runs, 2x256, batch 64: two actors in other processes, "
        "the single loop, and a learner without actors",
        unit="learner steps/s",
        contenders=loops(2),
    ),
    "weights": Bench(
        about="publish of 1 MB to a verified copy in a polling process on this host",
        unit="ms",
        better=Better.LOWER,
        contenders=(Contender(name="rookery", command=("weights/rookery_board.py",), bar=2.0),),
    ),
    "train": Bench(
        about="CartPole-v1 to a 20-episode greedy mean of 475; one round for each seed",
        unit="s",
        better=Better.LOWER,
        contenders=(
            Contender(name="rookery", command=("train/rookery_train.py",)),
            Contender(
                name="sb3", command=("train/sb3_dqn.py",), package="stable_baselines3", bar=1 / 3
            ),
        ),
        rounds=5,
        deadline_s=900.0,
    ),
    "checkpoint": Bench(
        about="training waits for a checkpoint, 1 M rows of 8 floats; Ctrl+C with 4 GB of replay",
        unit="stall: ms, interrupt: s",
        better=Better.LOWER,
        contenders=(
            Contender(name="stall:rookery", command=("checkpoint/rookery_stall.py",), bar=250.0),
            Contender(
                name="interrupt:rookery", command=("checkpoint/rookery_interrupt.py",), bar=10.0
            ),
        ),
        deadline_s=300.0,
    ),
    "start": Bench(
        about="`rookery train cartpole` to its first env steps; cold compiles everything anew",
        unit="s",
        better=Better.LOWER,
        contenders=(
            Contender(name="warm:rookery", command=("start/rookery_start.py", "warm"), bar=4.0),
            Contender(name="cold:rookery", command=("start/rookery_start.py", "cold")),
        ),
    ),
    "share": Bench(
        about="SB3 in a pool of four: what a batch of 256 with r = 0.2 takes longer than one with "
        "local_only, rings of 1 M and of 10,000 rows; SAC updates as a share of those with "
        "local_only; batches and steps versus lists in a manager process, 4 x 2,500 rows",
        unit="longer: us, train: share, draw: batches/s, append: steps/s",
        contenders=(
            Contender(
                name="longer:rookery", command=(_COST, "draw"), bar=20.0, better=Better.LOWER
            ),
            Contender(
                name="longer, 10k rows:rookery",
                command=(_COST, "draw", "--rows", "10000"),
                better=Better.LOWER,
            ),
            Contender(name="train:rookery", command=(_COST, "train"), bar=0.98),
            _timed("draw:rookery", "share/rookery_pool.py:draw"),
            _timed("draw:manager", "share/manager_lists.py:draw", bar=10_000.0),
            _timed("append:rookery", "share/rookery_pool.py:append"),
            _timed("append:manager", "share/manager_lists.py:append", bar=100.0),
        ),
        needs="stable_baselines3",
    ),
    "pathfinding": Bench(
        about="32 agents on 40 x 40 cells; env: compiled worlds, views as planes [6, 9, 9], a new "
        "case for each every 256 steps; device: in torch, on a GPU where there is one",
        unit="agent-steps/s",
        contenders=(
            _timed(
                "env_cpu_1core",
                "pathfinding/rookery_env.py:step",
                baseline="env_cpu_1core",
                bar=1_000_000.0,
            ),
            *(
                _timed(
                    f"{part}_device",
                    f"pathfinding/rookery_device.py:{part}",
                    baseline="env_cpu_1core",
                )
                for part in ("env", "act", "learn")
            ),
        ),
    ),
    "selfplay": Bench(
        about="Ludo for two; ludo: random choices, compiled, one core; actors: async against "
        "random, scripted and past, network 2x256; training: the same with a learner step of 64 "
        "rows for each game",
        unit="games/min",
        contenders=(
            _timed(
                "ludo_games_per_minute",
                "selfplay/rookery_ludo.py:play",
                baseline="ludo_games_per_minute",
                bar=1_600_000.0,
            ),
            Contender(name="1 actor", command=(*_GAMES, "--actors", "1"), baseline="1 actor"),
            Contender(
                name="2 actors", command=(*_GAMES, "--actors", "2"), baseline="1 actor", bar=1.7
            ),
            Contender(
                name="training_games_per_minute",
                command=(*_GAMES, "--learn"),
                baseline="training_games_per_minute",
                bar=20_000.0,
            ),
        ),
    ),
    "server": Bench(
        about="parameter service on loopback: 4 client processes push and pull 10 MB in turns, "
        "hashed and applied; socket: the same bytes over bare sockets; tls: with TLS too",
        unit="MB/s",
        contenders=(
            Contender(name="rookery", command=_SERVICE, bar=300.0),
            Contender(name="socket", command=("server/socket_copy.py",)),
            Contender(name="tls", command=(*_SERVICE, "--tls"), baseline="socket"),
        ),
        needs="uvicorn",
    ),
    "waiting": Bench(
        about="parameter service on loopback: 1,000 clients wait for a version that does not come",
        unit="% of a core",
        better=Better.LOWER,
        contenders=(
            Contender(
                name="rookery",
                command=("server/rookery_waiting.py", "--clients", "1000"),
                bar=5.0,
            ),
        ),
        needs="uvicorn",
    ),
}
