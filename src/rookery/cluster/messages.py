"""Control messages from the learner to the host worker of a cluster host, and its answers.

`PlayFreely`, `SaveActor` and `CutEpisodes` are those of a single actor: a host worker passes them
on to each of its actors.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from rookery.actors.actor_group import ActorGroupState
from rookery.actors.env_progress import EnvProgress
from rookery.actors.messages import ActorReport, ActorState, CutEpisodes, PlayFreely, SaveActor
from rookery.config.schema import Config
from rookery.envs.make import Factory
from rookery.replay.buffer import FoundRows, ShardStatus
from rookery.replay.replay import Inserted, Observed
from rookery.replay.saved_rows import ReplayState, RowBlock
from rookery.runtime.supervision import ActorLoss
from rookery.types import Array, Arrays, EnvSpec, Floats, JsonObject, Rows


class PoolIdentity(NamedTuple):
    """Identity of a run among the runs that sample from each other's replay buffers."""

    run_id: str
    family: str  # the same for all hosts of a run, which do not borrow from each other


class HostSetup(NamedTuple):
    """Constructor arguments of a host worker, which runs the actors of one cluster host.

    The first ones are the same for all hosts of a run.
    """

    config: Config
    spec: EnvSpec
    factory: Factory | None  # the user's environment, where it was given from Python
    version: int
    weights: Mapping[str, Array]
    identity: PoolIdentity | None = None  # where the run shares replay
    shards: int = 1  # that share the capacity
    place: int = 0  # of the host, among those of its run
    actors: tuple[int, ...] = ()  # their numbers in the run
    incarnations: tuple[int, ...] = ()
    progress: tuple[EnvProgress, ...] = ()  # of its actors' environments


# Control messages.


class PlayOnHost(NamedTuple):
    """Control message in sync mode: let every actor of the host play; return a report.

    Each actor plays `env_steps` steps, or `episodes` episodes if given. The host worker stores the
    steps in its part of the replay buffer.
    """

    env_steps: int
    episodes: int | None
    epsilons: tuple[float, ...]


class SetTerms(NamedTuple):
    """Control message in async mode: let the host's actors play or pause them; return a report.

    The host worker pauses its actors after about `allowance` env steps, so that they do not run far
    ahead of a busy learner. Steps that the actors played before this message arrived are in the
    report and count towards the new allowance, since the learner did not know of them.
    """

    go: bool
    epsilons: tuple[float, ...]
    allowance: int


class PublishWeights(NamedTuple):
    """Control message: give new network weights to the actors of the host.

    `payload` holds the weights by name; the engine fills it from Ray's object store.
    """

    version: int
    payload: Arrays | None = None  # filled in by the engine


class LookUpRows(NamedTuple):
    """Control message: return sampled rows (stored env steps) of the host's replay shard.

    It contains one request for each of several batches: random positions that the learner has
    drawn, and the shard's sampling mass (number of rows, or sum of priorities) for which it drew
    them.
    """

    questions: tuple[tuple[Floats, float], ...]  # places, and the spread they were drawn for


class UpdatePriorities(NamedTuple):
    """Control message: update the priorities of the host's replay rows from their new TD errors."""

    rows: Rows
    td_error: Array


class AskPeers(NamedTuple):
    """Control message: sample from other runs' replay buffers on this host.

    `question`, the request, is defined by the plugin that implements replay sharing.
    """

    rows: int  # that it asks for
    question: object


class SaveShard(NamedTuple):
    """Control message: return the replay shard's state for a checkpoint, with its unsaved rows.

    Rows (stored env steps) are numbered in the order of insertion; unsaved are those from number
    `saved` on.
    """

    saved: int


class CopyRows(NamedTuple):
    """Control message: return copies of the replay shard's rows from number `saved` on.

    Rows (stored env steps) are numbered in the order of insertion.
    """

    saved: int
    most: int | None = None  # rows; None: all


class RestoreShard(NamedTuple):
    """Control message: restore the host's replay shard (its part of replay) from a checkpoint."""

    numbers: JsonObject
    arrays: Arrays
    segments: tuple[tuple[int, Arrays], ...]

    @property
    def committed(self) -> int:
        """Number of rows (env steps) inserted into the replay shard before it was saved."""
        committed = self.numbers["committed"]
        assert isinstance(committed, int), "a number of rows"
        return committed


class AdoptRows(NamedTuple):
    """Control message: insert rows (env steps) from a checkpoint into the host's replay shard.

    Used if the checkpoint has another number of shards than the run, instead of `RestoreShard`.
    """

    columns: Arrays


class RestoreActors(NamedTuple):
    """Control message: restore the host's actors from a checkpoint."""

    actors: tuple[ActorState, ...]


# Answers.


class HostReport(NamedTuple):
    """Report of a host worker: its actors' reports, and env steps inserted since the last report.

    It answers `PlayOnHost`, `SetTerms` and `CutEpisodes`.
    """

    reports: tuple[ActorReport, ...]  # in sync: one for each actor, in their order
    inserted: Inserted
    version: int  # the newest that rows were played with; 0 without rows
    observed: Observed | None  # where statistics are kept
    complaints: tuple[str, ...]  # warnings
    incarnations: tuple[int, ...]
    status: ShardStatus
    clock: float  # the host's own, monotonic
    losses: tuple[ActorLoss, ...] = ()  # actors that were lost


class HostDone(NamedTuple):
    """Answer of a host worker to a control message that neither plays nor saves."""

    status: ShardStatus
    found: tuple[FoundRows, ...] = ()  # to `LookUpRows`: sampled rows for each requested batch
    of_peers: object = None  # to `AskPeers`; the plugin that shares replay defines it


# The learner does not wait for long for quick orders; slow ones may take any time.
QuickOrder: TypeAlias = (
    PlayFreely | SetTerms | PublishWeights | LookUpRows | UpdatePriorities | AskPeers
)
SlowActorOrder: TypeAlias = PlayOnHost | CutEpisodes | SaveActor | RestoreActors
SlowOrder: TypeAlias = SlowActorOrder | SaveShard | CopyRows | RestoreShard | AdoptRows
HostOrder: TypeAlias = QuickOrder | SlowOrder
HostAnswer: TypeAlias = HostReport | HostDone | ActorGroupState | ReplayState | RowBlock
