"""The host worker: the process on one cluster host that runs actors and holds a replay shard.

A replay shard is the host's part of the run's replay buffer; a row is one stored env step. Actors
are processes of this host and write rows into its shared memory, as they do without a cluster. The
host worker inserts their rows into its replay shard, supervises the actors, and handles the
learner's control messages. The learner's handle of it is a `HostHandle`.

In sync mode each control message lets the actors play a given number of steps or episodes. In async
mode they play continuously, and the learner's `SetTerms` messages limit how many env steps they may
play.

With replay sharing, other runs on this host may sample from the shard, and the learner may sample
from theirs (`AskPeers`). If the learner loses contact with a host worker, its shard stays readable
until the process ends; other runs ignore it once it stops inserting rows.
"""

import contextlib
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from rookery.actors.actor_group import ActorGroupState
from rookery.actors.local_group import LocalActors
from rookery.actors.messages import ActorGroupSetup, ActorReport, CutEpisodes, PlayFreely, SaveActor
from rookery.cluster import messages
from rookery.cluster.peers import peers_builder
from rookery.config.schema import ClusterConfig, Config, Engine
from rookery.learner.weight_store import WeightStore
from rookery.replay.buffer import LocalReplay, build_shard
from rookery.replay.replay import HostPeers, Inserted, Observed
from rookery.replay.shards import seen

NEWS_S = 0.02  # between two polls for actor reports
NAP_S = 0.005  # where there was nothing to insert


@dataclass
class Arrivals:
    """Env steps that a host worker has inserted, and actor reports, since its last own report."""

    count: int = 0
    steps: int = 0
    version: int = 0
    reports: list[ActorReport] = field(default_factory=list)
    observed: list[Observed] = field(default_factory=list)


class HostWorker:
    """Handles the learner's control messages for the actors and the replay shard of one host."""

    def __init__(self, setup: messages.HostSetup):
        self.config = at_home(setup.config)
        self.self_driven = False
        self._arrivals = Arrivals()
        self._terms = messages.SetTerms(False, (), 0)
        self._reported = 0  # env steps, since these terms
        self._heard = 0.0
        self._warned: list[str] = []
        with contextlib.ExitStack() as stack:
            self.weight_store = WeightStore(setup.weights)
            stack.callback(self.weight_store.close)
            self.weight_store.publish(setup.weights, version=setup.version)
            group = ActorGroupSetup(self.config, setup.spec, self.weight_store.fd, setup.factory)
            group = group._replace(numbers=setup.actors, incarnations=setup.incarnations)
            self.actors = LocalActors(group._replace(progress=setup.progress))
            stack.callback(self.actors.close)
            self.peers: HostPeers | None = None
            if setup.identity is not None:
                builder = peers_builder(self.config)
                self.peers = builder.on_host(self.config, setup.spec, setup.identity, setup.place)
                stack.callback(self.peers.close)
            self.replay = self._shard(setup)
            stack.pop_all()

    def _shard(self, setup: messages.HostSetup) -> LocalReplay:
        rng = np.random.default_rng(0)  # not used: the learner draws all random numbers
        with self._listening():
            return build_shard(
                self.config,
                setup.spec,
                self.actors.rings,
                rng,
                setup.shards,
                LocalReplay,
                lent=self.peers,
                place=setup.place,
                actors=max(setup.actors) + 1,  # of a host that joined later: beyond `actor.num`
                factory=setup.factory,
            )

    def do(self, order: messages.HostOrder) -> messages.HostAnswer:
        match order:
            case messages.PlayOnHost():
                return self._play(order)
            case messages.SetTerms():
                return self._set_terms(order)
            case CutEpisodes():
                self.actors.cut()
                self._insert()
                return self._report()
            case messages.LookUpRows():
                found = tuple(self.replay.look_up(*question) for question in order.questions)
                return messages.HostDone(self.replay.status, found)
            case messages.AskPeers():
                assert self.peers is not None, "only a run that shares asks"
                with self._listening():
                    answer = self.peers.answer(order.question)
                return messages.HostDone(self.replay.status, of_peers=answer)
            case SaveActor():
                return self.actors.save()
            case messages.SaveShard():
                return self.replay.save([order.saved])
            case messages.CopyRows():
                return self.replay.rows_since(order.saved, order.most)
            case PlayFreely():
                self.actors.start()
                self.self_driven = True
            case messages.PublishWeights():
                self._publish(order)
            case messages.UpdatePriorities():
                self.replay.update_priorities(order.rows, order.td_error)
            case messages.RestoreShard():
                self.replay.restore(order.numbers, order.arrays, order.segments)
            case messages.AdoptRows():
                self.replay.adopt(order.columns)
            case messages.RestoreActors():
                self.actors.restore(ActorGroupState(self.actors.incarnations, order.actors))
        return messages.HostDone(self.replay.status)

    def _play(self, order: messages.PlayOnHost) -> messages.HostReport:
        for reports in self.actors.collect(order.env_steps, order.epsilons, order.episodes):
            self._insert()
            self._arrivals.reports += reports
        return self._report()

    def work(self) -> None:
        """Inserts the actors' new env steps into the replay shard; reads actor reports every 20 ms.

        The engine calls it repeatedly in async mode.
        """
        arrived = self._insert()
        self._allow()
        if time.monotonic() - self._heard >= NEWS_S:
            self._heard = time.monotonic()
            self._arrivals.reports += self.actors.reports()
        elif not arrived:
            time.sleep(NAP_S)

    def _insert(self) -> int:
        inserted, arrivals = self.replay.insert(), self._arrivals
        if not inserted.count:
            return 0
        arrivals.count += inserted.count
        arrivals.steps += inserted.steps
        arrivals.version = max(arrivals.version, self.replay.newest_version(inserted))
        if self.config.env.normalize_obs or self.config.env.normalize_reward:
            arrivals.observed.append(self.replay.observed(inserted))
        if self.peers is not None:
            self.peers.beat()
        return inserted.count

    def _set_terms(self, order: messages.SetTerms) -> messages.HostReport:
        self._terms, self._reported = order, 0
        report = self._report()
        self._allow()
        return report

    def _allow(self) -> None:
        """Lets actors play or pauses them, as the learner's last `SetTerms` message says.

        Also pauses them once they have played the env steps that the message allows.
        """
        go = self._terms.go and self._reported + self._arrivals.steps < self._terms.allowance
        if self._terms.epsilons:
            self.actors.allow(go, list(self._terms.epsilons))

    def _report(self) -> messages.HostReport:
        arrivals, self._arrivals = self._arrivals, Arrivals()
        self._reported += arrivals.steps
        warned, self._warned = self._warned, []
        return messages.HostReport(
            reports=tuple(arrivals.reports),
            inserted=Inserted(-1, arrivals.count, arrivals.steps),
            version=arrivals.version,
            observed=seen(arrivals.observed),
            complaints=(*self.actors.warnings(), *warned),
            incarnations=tuple(self.actors.incarnations),
            status=self.replay.status,
            clock=time.monotonic(),
            losses=self.actors.take_losses(),
        )

    def _publish(self, order: messages.PublishWeights) -> None:
        assert order.payload is not None, "the engine fills it in"
        if order.version > self.weight_store.version:
            self.weight_store.publish(order.payload, version=order.version)
            self.replay.version = order.version

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Context manager that collects Python warnings for the next report to the learner."""
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            yield
        self._warned += [str(warning.message) for warning in heard]

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for part in (self.weight_store, self.replay, self.actors, self.peers):  # the last first
                if part is not None:
                    stack.callback(part.close)


def at_home(config: Config) -> Config:
    """Returns the settings for the actors of one host, as if the run had no cluster.

    The actors run as processes of the host, and the cluster settings have their defaults.
    """
    run = replace(config.run, engine=Engine.PROCESSES)
    return replace(config, run=run, cluster=ClusterConfig())
