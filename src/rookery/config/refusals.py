"""Tables of settings that do not go together: when, what is allowed, what to do.

    "run.mode async": {"actor.chunk_episodes": ((None,), "leave it out, or use --mode sync")}

In the tables of `Takes`, a setting that has the value in the key limits other settings to a few
values; a key without a value stands for any but 0 and null. A `Refusal` is for what such a row
cannot say. Its texts name settings in braces, such as {run.mode}.

What an algorithm adds to the tables is in its settings (`algorithms.py`). Limits of single settings
are their annotations.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from operator import attrgetter
from string import Formatter
from typing import TYPE_CHECKING, Any, NamedTuple

from rookery import plugins
from rookery.errors import ConfigError

if TYPE_CHECKING:
    from rookery.config.schema import Config

Takes = Mapping[str, tuple[tuple[Any, ...], str]]  # setting → the values it may have, what to do


class Refusal(NamedTuple):
    """A combination of settings that is refused: settings for which `when` is true.

    The text says what is allowed, what was given and what to do: "ALLOWED, got GIVEN; DO".
    """

    when: Callable[["Config"], bool]
    text: str  # names settings in braces


class _Words(Formatter):
    """Writes values into a text as YAML has them."""

    def format_field(self, value: Any, format_spec: str) -> str:
        return word(value)


def word(value: Any) -> str:
    """Returns a value as YAML has it."""
    if isinstance(value, tuple):
        return ", ".join(map(word, value)) or "none"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def refuse(rows: Iterable[Refusal], run: "Config") -> None:
    """Raises ConfigError with the text of the first row that refuses a run's settings."""
    for row in rows:
        if row.when(run):
            raise ConfigError(_Words().format(row.text, self=run, **vars(run)))


def refuse_others(who: str, takes: Takes, run: "Config") -> None:
    """Raises ConfigError for the first setting whose value is none of the allowed ones."""
    for key, (allowed, do) in takes.items():
        if (given := attrgetter(key)(run)) not in allowed:
            may = " or ".join(map(word, allowed)) or "none"
            raise ConfigError(f"{who} takes {key} {may} only, got {word(given)}; {do}")


def applying(table: Mapping[str, Takes], run: "Config") -> Iterator[tuple[str, Takes]]:
    """Yields the rows of a table whose key is true of the run's settings."""
    for who, takes in table.items():
        key, _, value = who.partition(" ")
        given = attrgetter(key)(run)
        if word(given) == value or (given and not value):
            yield who, takes


SB3_OURS = (  # arguments of SB3's constructor that a run gives, from settings of its own
    "env",
    "policy",
    "seed",
    "device",
    "verbose",
    "tensorboard_log",
    "buffer_size",
    "replay_buffer_class",
    "replay_buffer_kwargs",
)
OWN_SETTINGS = "leave it out: SB3's own settings go into sb3.kwargs, by SB3's names"
OWN_LOOP, WRAP = "SB3 has a loop of its own: leave it out", "use a wrapper in env.wrappers"
SB3_TAKES: Takes = {  # settings that SB3 would ignore
    "run.mode": (("single",), OWN_LOOP),
    "run.engine": (("auto", "inline"), OWN_LOOP),
    "cluster.address": ((None,), OWN_LOOP),
    "cluster.learner_resources": (({},), OWN_LOOP),
    "actor.num": ((1,), "use sb3.envs"),
    "actor.inference": (("local",), OWN_LOOP),
    "learner.replicas": ((1,), OWN_LOOP),
    "replay.sampling": (("uniform",), "leave it out"),
    "replay.storage": (("memory",), "lower replay.capacity"),
    "replay.shards": ((None, 1), "its replay is one piece: leave it out"),
    "replay.hindsight": ((0.0,), "SB3 has a HerReplayBuffer of its own: leave it out"),
    "env.frame_stack": ((1,), "use FrameStackObservation in env.wrappers"),
    "env.reward_scale": ((1.0,), WRAP),
    "env.reward_clip": ((None,), WRAP),
    "env.normalize_obs": ((False,), WRAP),
    "env.normalize_reward": ((False,), WRAP),
    "eval.epsilon": ((0.0,), "leave it out"),
}
SB3_CALLS: Mapping[str, str] = {  # settings that SB3 has by another name
    "actor.envs": "sb3.envs",
    "actor.epsilon": "sb3.kwargs.exploration_initial_eps",
    "actor.epsilon_end": "sb3.kwargs.exploration_final_eps",
    "actor.epsilon_steps": "sb3.kwargs.exploration_fraction",
    "algo.clip_range": "sb3.kwargs.clip_range",
    "algo.ent_coef": "sb3.kwargs.ent_coef",
    "algo.epochs": "sb3.kwargs.n_epochs",
    "algo.gae_lambda": "sb3.kwargs.gae_lambda",
    "algo.gamma": "sb3.kwargs.gamma",
    "algo.n_step": "sb3.kwargs.n_steps",
    "algo.name": "sb3.algorithm",
    "algo.noise": "sb3.kwargs.action_noise",
    "algo.target_period": "sb3.kwargs.target_update_interval",
    "algo.target_tau": "sb3.kwargs.tau",
    "algo.temperature": "sb3.kwargs.ent_coef",
    "algo.vf_coef": "sb3.kwargs.vf_coef",
    "learner.lr": "sb3.kwargs.learning_rate",
    "learner.max_grad_norm": "sb3.kwargs.max_grad_norm",
    "net.hidden": "sb3.kwargs.policy_kwargs={net_arch: [64, 64]}",
    "replay.batch_size": "sb3.kwargs.batch_size",
    "replay.learning_starts": "sb3.kwargs.learning_starts",
    "replay.samples_per_insert": "sb3.kwargs.gradient_steps",
}
SB3_RUN: tuple[Refusal, ...] = (
    Refusal(
        lambda run: run.sb3.algorithm is None,
        "backend sb3 needs the name of an algorithm, got none; set sb3.algorithm to one of SAC, "
        "TD3, DDPG, DQN, PPO, A2C",
    ),
    Refusal(
        lambda run: any(name in run.sb3.kwargs for name in SB3_OURS),
        f"sb3.kwargs takes none of {', '.join(SB3_OURS)}, got {{sb3.kwargs}}; they follow from "
        "env, run.seed, learner.device, replay.capacity, sharing: leave them out",
    ),
    Refusal(
        lambda run: bool({*(run.sb3.kwargs.get("policy_kwargs") or ())} - {"net_arch"}),
        "sb3.kwargs.policy_kwargs may have net_arch alone, got {sb3.kwargs[policy_kwargs]}; for "
        "more, use SB3 itself with rookery's DistributedReplayBuffer",
    ),
    Refusal(
        lambda run: run.run.seed >= 1 << 32,
        "SB3 takes seeds below 2**32, got {run.seed}; use a smaller run.seed",
    ),
)

NO_MEMORY: Takes = {
    "net.recurrent": (("none",), "it has no memory: use algo.name=r2d2, or leave it out"),
}
NO_CRITICS: Takes = {
    "net.critic_hidden": ((None,), "it has one network: set net.hidden"),
    "learner.critic_lr": ((None,), "it has one optimizer: set learner.lr"),
}
ON_DEVICE = "on one device there is nothing of it: leave it out, or use another --mode"
RUN_TAKES: Mapping[str, Takes] = {
    "run.mode single": {
        "actor.num": ((1,), "use --mode sync or --mode async"),
        "run.engine": (("auto", "inline"), "use --mode sync or --mode async with one actor"),
    },
    "run.mode async": {"actor.chunk_episodes": ((None,), "leave it out, or use --mode sync")},
    "run.mode device": {
        "run.engine": (("auto", "inline"), ON_DEVICE),
        "actor.num": ((1,), "use device.agents"),
        "actor.chunk_episodes": ((None,), ON_DEVICE),
        "learner.replicas": ((1,), ON_DEVICE),
        "replay.sampling": (("prioritized",), "its windows are drawn by priorities"),
        "replay.storage": (("memory",), ON_DEVICE),
        "replay.shards": ((None, 1), ON_DEVICE),
        "sharing.pool": ((None,), ON_DEVICE),
        "checkpoint.replay": ((False,), "a resumed run fills its replay anew: set it to false"),
        "learner.optimizer": (("adam", "adamw", "sgd"), "only these skip bad steps"),
    },
    "run.engine ray": {
        "replay.storage": (("memory",), "the run folder is not on all hosts: use memory"),
    },
    "cluster.address null": {
        "cluster.learner_resources": (({},), "they are of a cluster's host: give --address"),
    },
    "cluster.address": {"run.engine": (("ray",), "use --engine ray, or leave --address out")},
    "cluster.learner_resources": {
        "learner.replicas": ((1,), "start the run on the host that has the GPUs"),
    },
    "actor.inference central": {
        "run.mode": (("sync", "async"), "use one of them, or leave --inference out"),
        "run.engine": (("auto", "processes"), "use --engine processes, or leave --inference out"),
    },
    "sharing.pool": {
        "replay.storage": (("memory",), "replay is in the pool's folder: move that to the disk"),
    },
    "replay.initial_priority actor": {
        "replay.sampling": (
            ("prioritized",),
            "set replay.sampling=prioritized, or leave replay.initial_priority out",
        ),
        "env.normalize_reward": ((False,), "TD errors use stored rewards: use env.reward_scale"),
    },
    "replay.hindsight": {
        "algo.n_step": ((1,), "steps in between had another goal: set algo.n_step=1"),
        "algo.sequence": ((0,), "goals are exchanged in single transitions: leave it out"),
        "env.frame_stack": ((1,), "older frames show the old goal: set env.frame_stack=1"),
    },
    "selfplay.opponents {}": {
        "selfplay.league": ((False,), "add opponents, such as {latest: 0.5, past: 0.5}"),
    },
    "selfplay.opponents": {
        "run.mode": (("single", "sync", "async"), "leave it out"),
        "run.engine": (("auto", "inline", "processes"), "snapshots are in the run folder: use one"),
        "actor.inference": (("local",), "opponents act in the actors' processes: leave it out"),
        "algo.remembers": ((False,), "opponents' memory is not kept: use another algorithm"),
    },
}

RUN: tuple[Refusal, ...] = (
    Refusal(
        lambda run: run.sb3.same_as not in (None, run.algo.name),
        "the settings are those of SB3's {sb3.algorithm}, got algo.name {algo.name}; set "
        "algo.name={sb3.same_as}, or backend=sb3",
    ),
    Refusal(
        lambda run: run.learner.rendezvous is not None and run.learner.replicas == 1,
        "learner.rendezvous is for several learners, got learner.replicas 1; set their number "
        "with --learners, or leave learner.rendezvous out",
    ),
    Refusal(
        lambda run: run.selfplay.on and not sum(run.selfplay.opponents.values()) > 0,
        "selfplay.opponents has no weight above 0, got {selfplay.opponents}; give one of them "
        "more, or leave it out to play all seats",
    ),
    Refusal(
        lambda run: run.actor.inference == "central" and len(run.actor.devices) > 1,
        "actor.inference central has one network on one device, got actor.devices "
        "{actor.devices}; name one, or none for learner.device",
    ),
    Refusal(
        lambda run: (run.replay.shards or 1) > run.actor.num,
        "every shard has actors of its own, got replay.shards {replay.shards} and actor.num "
        "{actor.num}; use as many actors, or fewer shards",
    ),
    Refusal(
        lambda run: run.replay.batch_size % run.learner.replicas > 0,
        "replay.batch_size must be cut into {learner.replicas} equal slices, got "
        "{replay.batch_size}; set it to a multiple of {learner.replicas}, or use other --learners",
    ),
)

SIZES: tuple[Refusal, ...] = (  # where batches are drawn from `replay.capacity` rows
    Refusal(
        lambda run: max(run.replay.batch_size, run.replay.learning_starts) > run.replay.capacity,
        "replay.batch_size and replay.learning_starts must be at most replay.capacity "
        "{replay.capacity}, got {replay.batch_size} and {replay.learning_starts}; "
        "lower the first two or raise replay.capacity",
    ),
    Refusal(
        lambda run: run.replay.learning_starts < run.rows_of_sequences,
        "sequences of algo.name {algo.name} need replay.learning_starts {self.rows_of_sequences}, "
        "got {replay.learning_starts}; raise it, or lower actor.envs",
    ),
    Refusal(
        lambda run: run.replay.learning_starts > run.run.env_steps,
        "learning would never start: replay.learning_starts must be at most {run.env_steps}, "
        "which is run.env_steps, got {replay.learning_starts}; lower the first or raise the second",
    ),
    Refusal(
        lambda run: run.actor.chunk + run.actor.envs > run.replay.capacity,
        "a chunk does not fit into replay.capacity {replay.capacity}, got actor.chunk "
        "{actor.chunk}; lower the first or raise the second",
    ),
)

START: tuple[Refusal, ...] = (  # when a run starts: only then the pool is known
    Refusal(
        lambda run: run.selfplay.league and run.sharing.pool is None,
        "runs of selfplay.league play against each other's snapshots in sharing.pool, got none in "
        "{name}; start several with `rookery share --scenarios league league-exploiter`, name a "
        "folder in sharing.pool, or set selfplay.league=false",
    ),
)


def refuse_ignored(keys: Iterable[str], used: Collection[str]) -> None:
    """Raises ConfigError for the first of the given settings that a run of SB3 would ignore.

    `used` are the settings that it uses, and sections of which it uses all.
    """
    for key in keys:
        if key in SB3_TAKES or any(f"{key}.".startswith(f"{name}.") for name in used):
            continue
        name = SB3_CALLS.get(key)
        do = f"set {name}, which is SB3's" if name else OWN_SETTINGS
        raise ConfigError(f"backend sb3 would ignore {key}; {do}")


def _batched_algorithms() -> Takes:
    """Returns the algorithms whose environments can play on a device."""
    rows = plugins.algorithms().items()
    names = tuple(name for name, row in rows if row.batched_env is not None)
    return {"algo.name": (names, "no other has environments on a device: use another --mode")}


def refuse_run(run: "Config") -> None:
    """Raises ConfigError for settings of a whole run that do not go together."""
    if run.backend == "sb3":
        refuse(SB3_RUN, run)
        refuse_others("backend sb3", SB3_TAKES, run)
        return
    lacks = {key: row for key, row in NO_CRITICS.items() if key not in run.algo.critic_settings}
    lacks |= {} if run.algo.remembers else NO_MEMORY
    refuse_others(f"algo.name {run.algo.name}", {**lacks, **run.algo.takes}, run)
    if run.run.mode == "device":
        refuse_others("run.mode device", _batched_algorithms(), run)
    refuse(RUN, run)
    for who, takes in applying(RUN_TAKES, run):
        refuse_others(who, takes, run)
    if run.run.mode != "device" and not run.algo.on_policy:
        refuse(SIZES, run)
