"""What the settings of the RL Baselines3 Zoo are called here.

A row of a table below is one setting of the zoo and a function that puts it where it belongs; a
new algorithm is one more row of `ALGORITHMS`. The zoo leaves out what equals Stable-Baselines3's
own defaults, and ours differ: `Zoo.defaults` has them, so that a scenario means what its file does.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from rookery.config.draft import Draft, shown
from rookery.config.schema import Backend
from rookery.errors import ConfigError

Mapper: TypeAlias = Callable[[Draft, str, Any], None]  # draft, the zoo's name of it, value
Table: TypeAlias = Mapping[str, Mapper]

LINEAR = "lin_"  # before a number that goes down to 0
EVALUATIONS, CHECKPOINTS = 40, 10  # in a run, unless that makes them denser than usual
POLICIES = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy")
CNN_FEATURES = 512  # outputs of SB3's convolutions, before `net_arch`
NOTHING = "nothing here does that"
OFF = ("use_sde", "use_sde_at_warmup", "optimize_memory_usage", "normalize", "callback")
GOALS, LATER_GOALS = "n_sampled_goal", ("goal_selection_strategy", "future")

ACTIVATIONS = {"ReLU": "relu", "Tanh": "tanh", "ELU": "elu", "GELU": "gelu", "SiLU": "silu"}
OPTIMIZERS = {
    "Adam": "adam",
    "AdamW": "adamw",
    "RMSprop": "rmsprop",
    "RMSpropTFLike": "rmsprop",
    "SGD": "sgd",
}

# What a row raises where a value has another shape than it expects.
_ODD = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


def translate(draft: Draft, table: Table, otherwise: Mapper) -> None:
    """Puts everything that is given where it belongs; `otherwise` gets what no row is about."""
    wrappers_first = sorted(draft.given, key=lambda name: name != "env_wrapper")  # stable
    for name in wrappers_first:
        try:
            table.get(name, otherwise)(draft, name, draft.given[name])
        except ConfigError:
            raise
        except _ODD as error:
            raise ConfigError(
                f"{name} of {draft.env_id} is {shown(draft.given[name])}, which is not what the "
                "zoo writes there; correct the file"
            ) from error


def lost(draft: Draft, name: str, value: Any) -> None:
    """Notes a setting that has no place here, unless it is switched off as it is without a word."""
    if value is not None and not (value is False and name in OFF):
        draft.lose(name, value, NOTHING)


def _to(key: str) -> Mapper:
    return lambda draft, name, value: draft.put(key, value, name)


def _whole(key: str) -> Mapper:
    return lambda draft, name, value: draft.put(key, draft.whole(name, value), name)


def _elsewhere(draft: Draft, name: str, value: Any) -> None:
    """Another row reads this setting beside its own."""


def _steps(draft: Draft, name: str, value: Any) -> None:
    steps = draft.whole(name, value)
    draft.put("run.env_steps", steps, name)
    draft.put("eval.period", max(2_500, steps // EVALUATIONS), name)
    draft.put("checkpoint.period", max(10_000, steps // CHECKPOINTS), name)


def _env_kwargs(draft: Draft, name: str, value: Any) -> None:
    draft.put("env.kwargs", {**draft.settings.get("env.kwargs", {}), **(value or {})}, name)


def _wrappers(draft: Draft, name: str, value: Any) -> None:
    for entry in value if isinstance(value, list) else [value]:
        [(path, kwargs)] = entry.items() if isinstance(entry, Mapping) else [(entry, None)]
        if path is not None:
            _wrapper(draft, name, str(path), dict(kwargs or {}))


def _wrapper(draft: Draft, name: str, path: str, kwargs: dict[str, Any]) -> None:
    module, _, cls = path.rpartition(".")
    package = module.partition(".")[0]
    if cls in WRAPPERS:
        WRAPPERS[cls](draft, name, kwargs)
    elif package in ("gym", "utils", ""):
        draft.lose(name, path, "it is of the old gym, or of a module with no name of its own")
    else:
        known = cls if module.startswith("gymnasium.wrappers") else f"{module}:{cls}"
        draft.append("env.wrappers", {known: kwargs} if kwargs else known)
        if ":" in known:
            draft.change(name, path, f"it is in env.wrappers, and needs {package}")


def _time_limit(draft: Draft, name: str, kwargs: dict[str, Any]) -> None:
    draft.put("env.max_episode_steps", kwargs.get("max_episode_steps"), name)


def _atari(draft: Draft, name: str, kwargs: dict[str, Any]) -> None:
    """Games as Mnih et al. 2015 have them, by Gymnasium's own wrapper, one game an episode."""
    draft.append("env.wrappers", {"AtariPreprocessing": {"frame_skip": 4, "screen_size": 84}})
    draft.append("env.imports", "ale_py")
    if draft.env_id.startswith("ALE/"):
        draft.put("env.kwargs", {"frameskip": 1}, name)
        draft.change(
            name, "AtariWrapper", "ALE/... has sticky actions, which the zoo's ids have not"
        )
    if draft.backend is Backend.ROOKERY:
        draft.put("env.reward_clip", 1.0, name)
    else:
        draft.append("env.wrappers", {"ClipReward": {"min_reward": -1.0, "max_reward": 1.0}})
        draft.change(name, "AtariWrapper", "scores are of clipped rewards, too")
    draft.change(name, "AtariWrapper", "a lost life ends no episode, and nobody fires at its start")


WRAPPERS: dict[str, Callable[[Draft, str, dict[str, Any]], None]] = {
    "AtariWrapper": _atari,
    "TimeLimit": _time_limit,
}

ENVIRONMENT: Table = {
    "n_timesteps": _steps,
    "env_kwargs": _env_kwargs,
    "env_wrapper": _wrappers,
}


def scheduled(draft: Draft, name: str, value: Any) -> tuple[float, bool]:
    """Returns a number, and whether it goes down to 0 (`lin_0.001`)."""
    if isinstance(value, str) and value.startswith(LINEAR):
        try:
            return float(value.removeprefix(LINEAR)), True
        except ValueError:
            pass  # the message below is about the whole of it
    return draft.number(name, value), False


def _rate(draft: Draft, name: str, value: Any) -> None:
    rate, falls = scheduled(draft, name, value)
    draft.put("learner.lr", rate, name)
    if falls:
        draft.put("learner.lr_decay", "linear", name)


def _policy_class(draft: Draft, name: str, value: Any) -> None:
    """The network follows from the observations; a policy with memory would be another."""
    if value not in POLICIES:
        draft.lose(name, value, "the network follows from the observations, and has no memory")


def _normalize(draft: Draft, name: str, value: Any) -> None:
    if not value:
        return
    wanted = dict(value) if isinstance(value, Mapping) else {}
    draft.put("env.normalize_obs", wanted.pop("norm_obs", True), name)
    draft.put("env.normalize_reward", wanted.pop("norm_reward", True), name)
    for part, inner in wanted.items():
        draft.lose(f"{name}.{part}", inner, NOTHING)


def _network(draft: Draft, name: str, value: Any) -> None:
    for part, inner in (value or {}).items():
        NETWORK.get(part, lost)(draft, f"{name}.{part}", inner)


def _layers(draft: Draft, name: str, value: Any) -> None:
    arch = architecture(value)
    widths = list(arch.values()) if isinstance(arch, dict) else [arch]
    if any(other != widths[0] for other in widths):
        draft.change(name, value, f"all networks are {widths[0]}")
    features = [CNN_FEATURES] if draft.given.get("policy") == "CnnPolicy" else []
    draft.put("net.hidden", [*features, *widths[0]], name)


def architecture(value: Any) -> Any:
    """Returns layers as SB3 has them: a list, or a dict of lists; [dict(...)] is an older way."""
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        shared, last = value[:-1], value[-1]
        return {part: [*shared, *layers] for part, layers in last.items()}
    return value


def _activation(draft: Draft, name: str, value: Any) -> None:
    known = ACTIVATIONS.get(str(value).rpartition(".")[2])
    if known is None:
        draft.lose(name, value, f"net.activation may be {', '.join(ACTIVATIONS.values())}")
    else:
        draft.put("net.activation", known, name)


def _optimizer(draft: Draft, name: str, value: Any) -> None:
    draft.put("learner.optimizer", OPTIMIZERS[str(value).rpartition(".")[2]], name)
    if value == "RMSpropTFLike":
        draft.change(name, value, "it is torch's, which adds eps outside the root")


NETWORK: Table = {
    "net_arch": _layers,
    "activation_fn": _activation,
    "optimizer_class": _optimizer,
    "optimizer_kwargs": _to("learner.optimizer_kwargs"),
    "n_quantiles": _whole("algo.quantiles"),
    "n_critics": _whole("algo.critics"),
}
EVERYBODY: Table = {
    **ENVIRONMENT,
    "policy": _policy_class,
    "n_envs": _whole("actor.envs"),
    "frame_stack": _whole("env.frame_stack"),
    "normalize": _normalize,
    "learning_rate": _rate,
    "gamma": _to("algo.gamma"),
    "max_grad_norm": _to("learner.max_grad_norm"),
    "policy_kwargs": _network,
}


class Pace(NamedTuple):
    """How playing and learning take turns."""

    env_steps: int
    learner_steps: int


def pace(draft: Draft) -> Pace:
    """Returns the turns of SB3, whose `train_freq` counts steps of all environments together.

    After whole episodes, and for -1 gradient steps, it learns once for each env step.
    """
    envs = draft.whole("n_envs", draft.given["n_envs"])
    learner_steps = draft.whole("gradient_steps", draft.given["gradient_steps"])
    if _by_episode(draft.given["train_freq"]):
        return Pace(envs, envs)
    often = draft.given["train_freq"]
    env_steps = envs * draft.whole("train_freq", often[0] if isinstance(often, list) else often)
    if env_steps < 1:
        raise ConfigError(
            f"{draft.env_id} has train_freq {often} and n_envs {envs}; both must be above 0; "
            "correct the file"
        )
    return Pace(env_steps, env_steps if learner_steps < 0 else learner_steps)


def _by_episode(often: Any) -> bool:
    return isinstance(often, list) and "episode" in often


def _turns(draft: Draft, name: str, value: Any) -> None:
    env_steps, learner_steps = pace(draft)
    batch = draft.whole("batch_size", draft.given["batch_size"])
    if _by_episode(value):
        steps = draft.given["gradient_steps"]
        draft.change(name, value, f"a learner step for each env step, not {steps} at its end")
    draft.put("replay.samples_per_insert", batch * learner_steps / env_steps, name)
    draft.put("actor.chunk", env_steps, name)
    draft.put("actor.pull_period", env_steps, name)
    draft.put("learner.publish_period", max(1, learner_steps), name)


def _warmup(draft: Draft, name: str, value: Any) -> None:
    rows, batch = draft.whole(name, value), draft.whole("batch_size", draft.given["batch_size"])
    if rows < batch:
        draft.change(name, value, f"replay.warmup is {batch}: it must hold a batch")
    draft.put("replay.warmup", max(rows, batch), name)


def _hindsight(draft: Draft, name: str, value: Any) -> None:
    """Of `n_sampled_goal` + 1 rows one keeps its goal."""
    if value is None:
        return
    if str(value).rpartition(".")[2] != "HerReplayBuffer":
        draft.lose(name, value, NOTHING)
        return
    wanted = draft.given.get("replay_buffer_kwargs") or {}
    goals = draft.whole("n_sampled_goal", wanted.get(GOALS, 4))
    draft.put("replay.hindsight", goals / (goals + 1), name)


def _replay_kwargs(draft: Draft, name: str, value: Any) -> None:
    for part, inner in (value or {}).items():
        if part != GOALS and (part, inner) != LATER_GOALS:
            lost(draft, f"{name}.{part}", inner)


def _value_target(draft: Draft, name: str, value: Any) -> None:
    """SB3's DQN counts env steps between updates of the target, and we learner steps."""
    env_steps, learner_steps = pace(draft)
    every = draft.given["target_update_interval"]
    period = max(1, round(draft.whole("target_update_interval", every) * learner_steps / env_steps))
    if value == 1:
        draft.put("algo.target_period", period, name)
        return
    draft.put("algo.target_tau", value, name)
    if period > 1:
        draft.change("target_update_interval", every, "the target moves at every learner step")


def _exploration(draft: Draft, name: str, value: Any) -> None:
    steps = draft.number(name, value) * draft.whole("n_timesteps", draft.given["n_timesteps"])
    draft.put("actor.epsilon_steps", max(1, round(steps)), name)


def _temperature(draft: Draft, name: str, value: Any) -> None:
    if value == "auto":
        return
    if isinstance(value, str) and value.startswith("auto_"):
        draft.put("algo.first_temperature", float(value.removeprefix("auto_")), name)
    else:
        draft.put("algo.temperature", draft.number(name, value), name)


def _entropy_target(draft: Draft, name: str, value: Any) -> None:
    if value != "auto":
        draft.put("algo.entropy_target", draft.number(name, value), name)


def _each_step(draft: Draft, name: str, value: Any) -> None:
    if value != 1:
        draft.lose(name, value, "targets move at every learner step")


def noise_type(draft: Draft, name: str, value: Any) -> None:
    if value not in (None, "normal"):
        draft.change(name, value, "the noise is normal")


def _rollout(draft: Draft, name: str, value: Any) -> None:
    envs = draft.whole("n_envs", draft.given["n_envs"])
    rows = envs * draft.whole(name, value)
    draft.put("actor.chunk", rows, name)
    draft.put("actor.pull_period", rows, name)


def _clip(draft: Draft, name: str, value: Any) -> None:
    clip, falls = scheduled(draft, name, value)
    draft.put("algo.clip", clip, name)
    if falls:
        draft.change(name, value, f"it stays {clip}")


def _rms_prop(draft: Draft, name: str, value: Any) -> None:
    if value:
        draft.put("learner.optimizer", "rmsprop", name)
        kwargs = {"alpha": 0.99, "eps": draft.given["rms_prop_eps"]}
        draft.put("learner.optimizer_kwargs", kwargs, name)


OFF_POLICY: Table = {
    **EVERYBODY,
    "buffer_size": _whole("replay.capacity"),
    "batch_size": _whole("replay.batch"),
    "learning_starts": _warmup,
    "train_freq": _turns,
    "gradient_steps": _elsewhere,
    "n_steps": _whole("algo.n_step"),
    "replay_buffer_class": _hindsight,
    "replay_buffer_kwargs": _replay_kwargs,
}
VALUES: Table = {
    **OFF_POLICY,
    "tau": _value_target,
    "target_update_interval": _elsewhere,
    "exploration_fraction": _exploration,
    "exploration_initial_eps": _to("actor.epsilon"),
    "exploration_final_eps": _to("actor.epsilon_end"),
}
SOFT: Table = {
    **OFF_POLICY,
    "tau": _to("algo.target_tau"),
    "ent_coef": _temperature,
    "target_entropy": _entropy_target,
    "target_update_interval": _each_step,
    "top_quantiles_to_drop_per_net": _whole("algo.dropped"),
}
DETERMINISTIC: Table = {
    **OFF_POLICY,
    "tau": _to("algo.target_tau"),
    "noise_std": _to("algo.noise"),
    "noise_type": noise_type,
    "policy_delay": _whole("algo.policy_period"),
    "target_policy_noise": _to("algo.target_noise"),
    "target_noise_clip": _to("algo.target_noise_clip"),
}
ROLLOUTS: Table = {
    **EVERYBODY,
    "n_steps": _rollout,
    "batch_size": _whole("replay.batch"),
    "n_epochs": _whole("algo.epochs"),
    "gae_lambda": _to("algo.gae_lambda"),
    "ent_coef": _to("algo.entropy_bonus"),
    "vf_coef": _to("algo.value_weight"),
    "normalize_advantage": _to("algo.normalize_advantage"),
    "clip_range": _clip,
    "use_rms_prop": _rms_prop,
    "rms_prop_eps": _elsewhere,
}


class Zoo(NamedTuple):
    """An algorithm of the zoo: what it is here, and what its files need not say."""

    name: str  # algo.name
    table: Table
    defaults: dict[str, Any]  # of SB3, in the zoo's words
    vectors: dict[str, Any]  # SB3's `policy_kwargs` for vectors
    images: dict[str, Any]  # and behind the convolutions
    ours: dict[str, Any]  # settings of ours that make it SB3's algorithm


REPLAY = {
    "buffer_size": 1_000_000,
    "learning_starts": 100,
    "gradient_steps": 1,
    "gamma": 0.99,
    "n_envs": 1,
}
DQN = REPLAY | {
    "learning_rate": 1e-4,
    "batch_size": 32,
    "tau": 1.0,
    "train_freq": 4,
    "target_update_interval": 10_000,
    "exploration_fraction": 0.1,
    "exploration_initial_eps": 1.0,
    "exploration_final_eps": 0.05,
    "max_grad_norm": 10,
}
QRDQN = DQN | {
    "learning_rate": 5e-5,
    "exploration_fraction": 0.005,
    "exploration_final_eps": 0.01,
    "max_grad_norm": None,
}
SAC = REPLAY | {"learning_rate": 3e-4, "batch_size": 256, "tau": 0.005, "train_freq": 1}
TD3 = SAC | {"learning_rate": 1e-3, "noise_std": 0.0}
PPO = {
    "learning_rate": 3e-4,
    "n_steps": 2_048,
    "batch_size": 64,
    "n_epochs": 10,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_range": 0.2,
    "normalize_advantage": True,
    "ent_coef": 0.0,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
    "n_envs": 1,
}
A2C = {
    "learning_rate": 7e-4,
    "n_steps": 5,
    "gamma": 0.99,
    "gae_lambda": 1.0,
    "normalize_advantage": False,
    "ent_coef": 0.0,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
    "use_rms_prop": True,
    "rms_prop_eps": 1e-5,
    "n_envs": 1,
}
SMALL: dict[str, Any] = {"net_arch": [64, 64]}
TANH: dict[str, Any] = {"net_arch": [64, 64], "activation_fn": "nn.Tanh"}
LARGE: dict[str, Any] = {"net_arch": [256, 256]}
LARGER: dict[str, Any] = {"net_arch": [400, 300]}
NONE: dict[str, Any] = {"net_arch": []}

PLAIN: dict[str, Any] = {"algo.double": False, "algo.dueling": False}
QUANTILES = PLAIN | {"algo.values": "quantiles", "algo.quantiles": 200}
UNBOUND: dict[str, Any] = {"learner.max_grad_norm": None}
STEADY: dict[str, Any] = {"learner.optimizer_kwargs": {"eps": 1e-5}}

ALGORITHMS: dict[str, Zoo] = {
    "dqn": Zoo("dqn", VALUES, DQN, SMALL, NONE, PLAIN),
    "qrdqn": Zoo("dqn", VALUES, QRDQN, SMALL, NONE, QUANTILES),
    "sac": Zoo("sac", SOFT, SAC, LARGE, LARGE, UNBOUND),
    "tqc": Zoo("tqc", SOFT, SAC, LARGE, LARGE, UNBOUND),
    "td3": Zoo("td3", DETERMINISTIC, TD3, LARGER, LARGER, UNBOUND),
    "ddpg": Zoo("ddpg", DETERMINISTIC, TD3, LARGER, LARGER, UNBOUND),
    "ppo": Zoo("ppo", ROLLOUTS, PPO, TANH, NONE, STEADY),
    "a2c": Zoo("a2c", ROLLOUTS, A2C, TANH, NONE, {}),
}
