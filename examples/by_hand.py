"""The learner's loop and the actors' loop, written out by hand. One process, no engine.

python examples/by_hand.py

Everything `rookery train corridor --mode async` does with experience and weights is in the two
functions below; docs/by-hand.md goes through them line by line.
"""

import numpy as np
import torch

from rookery import Actor, Config, Learner, Limiter, LocalReplay, WeightStore
from rookery.algorithms import build_algorithm
from rookery.config.algorithms import DqnConfig
from rookery.config.schema import (
    ActorConfig,
    EnvConfig,
    NetConfig,
    ReplayConfig,
    RunConfig,
)
from rookery.envs.make import make

NUM_ACTORS, CHUNK = 3, 20
torch.set_num_threads(1)  # small layers gain nothing from more
config = Config(
    run=RunConfig(seed=1),
    env=EnvConfig(id="rookery.envs.toy.basic:Corridor"),
    net=NetConfig(hidden=(32,)),
    algo=DqnConfig(n_step=2, target_period=50),
    replay=ReplayConfig(capacity=5_000, learning_starts=200, batch_size=32, sampling="prioritized"),
    actor=ActorConfig(envs=2, chunk=CHUNK, pull_period=400),
)


def play(actor: Actor, store: WeightStore, epsilon: float) -> list[float]:
    """An actor's turn: pull new weights now and then, act, step, write rows. It never learns."""
    if actor.due():
        actor.pull(store)  # ray.get(weights_id); load_state_dict
    played = actor.collect(CHUNK, epsilon)  # in eval mode, without gradients
    return [episode.score for episode in played.ended]


def learn(learner: Learner, replay: LocalReplay, limiter: Limiter, store: WeightStore) -> None:
    """The learner's turn: take in rows, and learn as often as they allow. Weights change here."""
    limiter.insert(replay.insert().steps)  # rows → replay; open episodes too
    while limiter.ready():
        batch = replay.sample(config.replay.batch_size, beta=0.4)  # buffer.get_data()
        limiter.sample(config.replay.batch_size)
        learned = learner.learn(batch)  # zero_grad, backward, optimizer.step
        replay.update_priorities(batch.rows, learned.td_error)  # buffer.update_priorities
        if learner.due():  # every 5 learner steps
            store.publish(learner.weights())  # weights_id = ray.put(...)


def new_actor(index: int) -> Actor:
    envs = make(config.env, config.actor.envs)
    algorithm = build_algorithm(config, envs.spec)
    return Actor(envs, algorithm, config.actor, config.env, seed=config.run.seed, index=index)


actors = [new_actor(i) for i in range(NUM_ACTORS)]
spec = actors[0].envs.spec
learner = Learner(build_algorithm(config, spec), config.learner, config.env, torch.device("cpu"))
store = WeightStore(learner.weights())
store.publish(learner.weights())
replay = LocalReplay(
    spec,
    config.replay,
    config.algo,
    rng=np.random.default_rng(config.run.seed),
    transports=[actor.ring for actor in actors],  # each actor's rows, on their way
    envs=config.actor.envs,
)
limiter = Limiter(warmup=200, samples_per_insert=16.0, batch=32, slack=NUM_ACTORS * CHUNK)
ladder = [0.4 ** (1 + 7 * i / (NUM_ACTORS - 1)) for i in range(NUM_ACTORS)]  # Horgan et al. 2018

returns: list[float] = []
for turn in range(100):
    for actor, epsilon in zip(actors, ladder, strict=True):
        returns += play(actor, store, epsilon)
    learn(learner, replay, limiter, store)
    if (turn + 1) % 20 == 0:
        print(
            f"{(turn + 1) * NUM_ACTORS * CHUNK} env steps, {learner.learner_steps} learner steps, "
            f"version {store.version}: mean of the last 20 returns {np.mean(returns[-20:]):.2f}"
        )

print(f"the first 20 episodes returned {np.mean(returns[:20]):.2f}; the best possible is 0.93")
for part in (*actors, replay, store):
    part.close()
