"""Control messages from the learner process to an actor process, and the actor's answers."""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from rookery.actors.env_progress import EnvProgress
from rookery.actors.inference.inference_client import InferenceAddress
from rookery.config.schema import Config
from rookery.envs.env_calls import EnvCalls
from rookery.envs.make import Envs, Factory
from rookery.event import Episode, Traced
from rookery.types import Array, Arrays, Floats, Json, JsonObject


class ActorState(NamedTuple):
    """The state of one actor and its environments, for a checkpoint."""

    numbers: JsonObject
    arrays: Arrays
    exact: bool  # False: the environments cannot export their state in the middle of episodes


class ActorSetup(NamedTuple):
    """Arguments of `ActorWorker`, which runs one actor: settings, environments, shared memory."""

    config: Config
    factory: Factory | None  # the user's environment, where it was given from Python
    actor: int  # its number in the run
    incarnation: int
    ring_fd: int  # its transport ring
    weights_fd: int | None  # the weight store; None: the inference server has the weights
    envs: Envs | None = None  # made already, where the actor lives in the process that made them
    inference: InferenceAddress | None = None
    opponents: object = None  # `Opponents.for_actors`, of a run that has opponents
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
    """Tuple of finished episodes, which is pickled as arrays and unpickled as `EpisodeColumns`.

    A fast actor finishes thousands of episodes a second: unpickling one object for each in the
    learner process would take too long.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[object, ...]:
        scores, lengths, infos = zip(*self, strict=True) if self else ((), (), ())
        info = {i: own for i, own in enumerate(infos) if own} if any(infos) else {}
        return EpisodeColumns, (np.array(scores, np.float64), np.array(lengths, np.int32), info)


class EpisodeColumns(Collection[Episode]):
    """Finished episodes stored as arrays; iterating yields them as `Episode` objects, in order."""

    def __init__(self, score: Floats, length: Array, info: Mapping[int, Mapping[str, float]]):
        self.score, self.length, self.info = score, length, info  # info: only where there is any

    def __len__(self) -> int:
        return len(self.score)

    def __iter__(self) -> Iterator[Episode]:
        infos: list[Mapping[str, float]] = [{} for _ in range(len(self))]
        for i, info in self.info.items():
            infos[i] = info
        columns = zip(self.score.tolist(), self.length.tolist(), infos, strict=True)
        return map(Episode._make, columns)

    def __contains__(self, episode: object) -> bool:
        return any(episode == own for own in self)


class ActorReport(NamedTuple):
    """Report of an actor to the learner: env steps and episodes played since its last report.

    It answers the control message `PlayChunk`. In async mode the actor sends one every 50 ms.
    """

    env_steps: int
    ended: Collection[Episode]  # `EndedEpisodes`; from another process `EpisodeColumns`
    epsilon: float
    version: int  # of the weights that played last
    left: int = 0  # episodes that did not fit into the ring any more
    traced: Traced | None = None
    progress: EnvProgress | None = None  # while playing freely, now and then


class ActorDone(NamedTuple):
    """Answer of an actor to `CutEpisodes` and `RestoreActor`: done."""


ActorOrder: TypeAlias = PlayChunk | PlayFreely | CutEpisodes | SaveActor | RestoreActor
ActorAnswer: TypeAlias = ActorReport | ActorState | ActorDone
