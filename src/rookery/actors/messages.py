"""Control messages from the learner process to an actor process, and the actor's answers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from rookery.actors.env_progress import EnvProgress
from rookery.config.schema import Config
from rookery.envs.env_calls import EnvCalls
from rookery.envs.make import Envs, Factory
from rookery.event import Episode, Traced
from rookery.types import Array, Arrays, EnvSpec, Floats, Json, JsonObject


class ActorState(NamedTuple):
    """The state of one actor and its environments, for a checkpoint."""

    numbers: JsonObject
    arrays: Arrays
    exact: bool  # False: the environments cannot export their state in the middle of episodes


class ActorGroupSetup(NamedTuple):
    """Arguments from which the actors of one host are built: settings, environments, weights."""

    config: Config
    spec: EnvSpec  # of their rows
    weights_fd: int  # the weight store
    factory: Factory | None = None  # the user's environment, where it was given from Python
    envs: Envs | None = None  # made already, for the first actor of this process
    incarnations: Sequence[int] = ()  # of the actors; 0 where there is none
    numbers: Sequence[int] | None = None  # in the run, where these are only some of its actors
    progress: Iterable[Sequence[object]] = ()  # of environments, as `Progress` accepts it
    memory: int = 0  # recurrent state of the policy for each environment, for central inference
    opponents: object = None  # `Opponents.for_actors`, of a run that has opponents

    def incarnation(self, index: int) -> int:
        return self.incarnations[index] if index < len(self.incarnations) else 0


class ActorSetup(NamedTuple):
    """Arguments of `ActorWorker`, which runs one actor: shared memory, and those of its group."""

    group: ActorGroupSetup  # with environments only for the actor that takes them
    actor: int  # its number in the run
    incarnation: int
    ring_fd: int  # its transport ring
    weights_fd: int  # the weight store, or with central inference the slots of its server
    progress: list[Json] | None = None  # that its environments begin with
    calls: EnvCalls | None = None  # of the environments of all actors of this process


class PlayChunk(NamedTuple):
    """Control message: play at least `env_steps` steps, or until `episodes` episodes have ended."""

    env_steps: int
    episodes: int | None
    epsilon: float


class PlayFreely(NamedTuple):
    """Control message: play continuously from now on, without further messages (async mode)."""


class CutEpisodes(NamedTuple):
    """Control message: truncate all episodes in progress, before a checkpoint is saved."""


class SaveActor(NamedTuple):
    """Control message: return the actor's state for a checkpoint."""


class RestoreActor(NamedTuple):
    """Control message: restore the actor from this state and continue."""

    state: ActorState


class EndedEpisodes(tuple[Episode, ...]):
    """Tuple of finished episodes, which is pickled as arrays.

    A fast actor finishes thousands of episodes a second: unpickling one object for each in the
    learner process would take too long.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[object, ...]:
        scores, lengths, infos = zip(*self, strict=True) if self else ((), (), ())
        some = infos if any(infos) else ()
        return _ended, (np.array(scores, np.float64), np.array(lengths, np.int32), some)


def _ended(scores: Floats, lengths: Array, infos: Sequence[Mapping[str, float]]) -> EndedEpisodes:
    infos = infos or [{} for _ in scores]
    columns = zip(scores.tolist(), lengths.tolist(), infos, strict=True)
    return EndedEpisodes(map(Episode._make, columns))


class ActorReport(NamedTuple):
    """Report of an actor to the learner: env steps and episodes played since its last report.

    It answers the control message `PlayChunk`. In async mode the actor sends one every 50 ms.
    """

    env_steps: int
    ended: Sequence[Episode]
    version: int  # of the weights that played last
    left: int = 0  # episodes that did not fit into the ring any more
    traced: Traced | None = None
    progress: EnvProgress | None = None  # while playing freely, now and then


class ActorDone(NamedTuple):
    """Answer of an actor to `CutEpisodes` and `RestoreActor`: done."""


ActorOrder: TypeAlias = PlayChunk | PlayFreely | CutEpisodes | SaveActor | RestoreActor
ActorAnswer: TypeAlias = ActorReport | ActorState | ActorDone
