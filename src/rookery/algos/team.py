"""Deep Q-learning for a team whose members talk to those nearby, and learn from all of them.

After DHC (Ma, Luo, Ma 2021, "Distributed heuristic multi-agent path finding with communication")
and DCC (Ma, Luo, Pan 2021, "Learning selective communication for multi-agent path finding"), but
for this: every agent's steps are learned from, and every step of a sequence after its burn-in,
where both learn from the last step of one agent.

An observation is a dict, for N agents of one world: `view` [N, S, S] codes of what each sees,
`place` [N, 2] rows and columns (-1: nobody has this number), `reward` [N] what the last step earned
each. All agents act at once, and an action is [N].
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rookery.algos.chance import drawn, some_explorers
from rookery.algos.interface import Acted, Algorithm, Loss, require
from rookery.config.algorithms import Talk, TeamConfig
from rookery.config.schema import EnvConfig, NetConfig
from rookery.nets.ask import tensors
from rookery.nets.follow import Follower
from rookery.nets.team import Heard, Links, TeamQ, neighbours
from rookery.types import Array, Batch, EnvSpec, Extra, Floats, Obs

MEMORY, FRESH, COMM, VALUES = "memory", "fresh", "comm", "q"
VIEW, PLACE, REWARD = "view", "place", "reward"
AGENT = 1  # the bit of a view's code that shows somebody else


class Window(NamedTuple):
    """T steps, and the moment after them, of S agents of however many worlds."""

    view: Tensor  # [T + 1, S, sight, sight] uint8
    links: Links  # [T + 1, S, K] each
    action: Tensor  # [T, S] int64
    reward: Tensor  # [T, S]
    discount: Tensor  # [T, S] gamma, 0 after a termination
    mask: Tensor  # [T, S] 1 where there was a step to learn from
    memory: Tensor  # [S, M] before the first step
    weight: Tensor  # [S]
    fresh: Tensor | None = None  # [T + 1, S] bool: an episode begins; None: at the first step only


class Learnt(NamedTuple):
    """What a window teaches."""

    loss: Tensor  # []
    error: Tensor  # [T, S] |TD error|, 0 where nothing is taught
    taught: Tensor  # [T, S]
    said: Tensor  # [T, S] what was thought of the actions


class Team(Algorithm):
    """Learns action values of every agent; acts on what they saw, remember and tell each other."""

    together = True

    def __init__(self, config: TeamConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        leaves = {leaf.name: leaf.shape for leaf in spec.obs}
        codes = (VIEW, "uint8") in {(leaf.name, leaf.dtype) for leaf in spec.obs}
        fits = codes and {PLACE, REWARD} <= set(leaves) and spec.action.several
        needs = "a team (view of uint8 `Codes`, place, reward; a choice for each agent)"
        require(fits, config.name, needs, spec, "use rookery.envs.pathfinding.team:Team")
        self.config, self.spec, self.draws = config, spec, config.temperature > 0
        self.agents, sight, _ = leaves[VIEW]
        self.radius, self.choices = sight // 2, spec.action.sizes[0]
        self.online = TeamQ(
            sight=sight,
            actions=self.choices,
            features=net.memory,
            memory=net.memory,
            heads=config.heads,
            width=config.width,
            rounds=0 if config.talk is Talk.NONE else config.rounds,
        )
        self.target = Follower(self.online)
        self.acting: nn.Module = self.online
        self.networks = nn.ModuleDict({"online": self.online, "target": self.target.network})
        self.memory = self.agents * net.memory
        self.extras = (
            Extra(MEMORY, (self.memory,), each=False, own=True),  # before the step
            Extra(FRESH, each=False),  # 1 where an episode begins
            Extra(COMM, (self.agents, self.agents), "uint8"),  # 1: the row's agent hears another
            Extra(VALUES, (self.agents, self.choices)),  # what the actor thought of all actions
        )

    def groups(self) -> dict[str, list[nn.Parameter]]:
        return {"q": list(self.online.parameters())}

    def losses(self, batch: Batch, *, step: int, rng: torch.Generator) -> Iterator[Loss]:
        if isinstance(batch.obs, Window):  # drawn on the device: whoever drew it knows the worlds
            learn = self.copy if self.config.taught else self.teach
            learnt, then = learn(batch.obs), batch.extras
            surprise = self.surprise(learnt)
        else:
            fresh = (batch.extras[FRESH] > 0)[:, None].expand(-1, self.agents).flatten()
            learnt, then = self.teach(self._window(batch), fresh), self._then(batch)
            surprise = self.joint(self.surprise(learnt), self.agents, learnt.taught.amax(0))
        count, said = learnt.taught.sum(), learnt.said.detach()
        taught = count.clamp(min=1.0)
        if self.config.taught:
            facts = {"agreement": said}
        else:
            facts = {"q_mean": said, "q_drift": (said - then).abs()}  # since it was played
        metrics = {name: (fact * learnt.taught).sum() / taught for name, fact in facts.items()}
        yield Loss("q", learnt.loss, surprise, metrics, count)

    def copy(self, window: Window) -> Learnt:
        """Returns the loss of a window whose actions are a teacher's, values being their scores.

        What is `said` is whether the best of them is the teacher's.
        """
        scores = unroll(self.online, window, self.config.burn_in)[:-1]  # [T, S, A]
        taught = window.mask.clone()
        taught[: self.config.burn_in] = 0.0
        missed = F.cross_entropy(scores.flatten(0, 1), window.action.flatten(), reduction="none")
        loss = (missed.view_as(taught) * taught).sum() / taught.sum().clamp(min=1.0)
        agrees = scores.detach().argmax(2) == window.action
        return Learnt(loss, taught, taught, agrees.float())

    def teach(self, window: Window, fresh: Tensor | None = None) -> Learnt:
        """Returns the loss of a window.

        Steps of the burn-in are taught too where agents, [S], are `fresh`: at the beginning of an
        episode memories are exact. Without that word nobody is, and no gradient is kept for them.
        """
        q = unroll(self.online, window, 0 if fresh is not None else self.config.burn_in)
        said = q[:-1].gather(2, window.action[..., None]).squeeze(2)  # [T, S]
        with torch.no_grad():
            wanted = self._wanted(window, q.detach())
            steps = torch.arange(len(said), device=said.device)[:, None]
            late = steps >= self.config.burn_in
            taught = window.mask * (late if fresh is None else late | fresh)
        error = (wanted - said) * taught
        huber = F.smooth_l1_loss(error, torch.zeros_like(error), reduction="none")
        loss = (huber * window.weight).sum() / taught.sum().clamp(min=1.0)
        return Learnt(loss, error.detach().abs(), taught, said)

    def _wanted(self, window: Window, q: Tensor) -> Tensor:
        """Returns what values should have been, [T, S]."""
        next_q = unroll(self.target.network, window, 0)
        best = (q if self.config.double else next_q).argmax(2, keepdim=True)
        value = next_q.gather(2, best).squeeze(2)  # [T + 1, S]
        reward = cared(window.reward, window.links, self.config.care)
        there = window.mask > 0
        return backed_up(value, reward, window.discount, there, self.config.n_step)

    def surprise(self, learnt: Learnt) -> Tensor:
        """Returns the agents' priorities, [S]: a share of the largest error, the rest of mean."""
        count = learnt.taught.sum(0).clamp(min=1.0)
        return self._mixed(learnt.error.amax(0), learnt.error.sum(0) / count)

    def joint(self, surprise: Tensor, agents: int, there: Tensor | None = None) -> Tensor:
        """Returns the priorities of worlds, mixed likewise, from those of so many agents each.

        Where not all numbers are somebody's, `there` [S] is 1 for those that are.
        """
        each = surprise.view(-1, agents)
        if there is None:
            return self._mixed(each.amax(1), each.mean(1))
        return self._mixed(each.amax(1), each.sum(1) / there.view(-1, agents).sum(1).clamp(min=1.0))

    def _mixed(self, largest: Tensor, mean: Tensor) -> Tensor:
        return self.config.eta * largest + (1.0 - self.config.eta) * mean

    def settle(self, step: int) -> None:
        self.target.settle(step, tau=self.config.target_tau, period=self.config.target_period)

    def listen(self, view: Tensor, place: Tensor, memory: Tensor) -> Links:
        """Returns whom the agents of E worlds hear: [E, N, ...] views and places, [E * N, M]."""
        links = neighbours(place, radius=self.radius, most=self.config.neighbours)
        heard = HEARD[self.config.talk](self, view.flatten(0, 1), memory, links)
        return links._replace(heard=heard)

    def matters(self, view: Tensor, memory: Tensor, links: Links) -> Tensor:
        """Says whose presence changes what a listener would do by itself, [A, K] bool."""
        agents, reach = links.who.shape
        cells = torch.arange(view[0].numel(), device=view.device)
        erased = (links.where[..., None] == cells) & links.heard[..., None]  # [A, K, S * S]
        without = view.flatten(1)[:, None] & ~(erased.to(torch.uint8) * AGENT)
        choice = self._alone(view, memory)[:, None]
        other = self._alone(
            without.view(-1, *view.shape[1:]), memory.repeat_interleave(reach, 0)
        ).view(agents, reach)
        matters = links.heard & (choice != other)
        matters[:, 0] = True  # itself
        return matters

    def _alone(self, view: Tensor, memory: Tensor) -> Tensor:
        """Returns what agents would do without a word, [A]."""
        net = self.online
        return net.values(net.remember(net.see(view), memory)).argmax(1)

    def act(
        self,
        obs: Obs,
        rng: np.random.Generator,
        *,
        epsilon: float = 0.0,
        noise: bool = True,
        values: bool = False,
        memory: Floats | None = None,
    ) -> Acted:
        """Chooses [E, N] actions; without a memory as if every episode had just begun.

        With noise they are drawn, where there is a temperature.
        """
        assert isinstance(obs, dict)
        worlds = len(obs[VIEW])
        if memory is None:
            memory = np.zeros((worlds, self.memory), dtype=np.float32)
        q, after, comm = self._step(obs, memory)
        heat = self.config.temperature if noise else 0.0
        best = drawn(q / heat, rng) if heat else q.argmax(2)
        action = some_explorers(best, self.choices, epsilon, self.config.explorers, rng)
        extras = {MEMORY: memory, FRESH: np.asarray(~memory.any(1)), COMM: comm, VALUES: q}
        acted = Acted(action, extras=extras, memory=after)
        if not values:
            return acted
        taken = np.take_along_axis(q, action[..., None], 2)[..., 0]
        return acted._replace(taken=taken.mean(1), best=q.max(2).mean(1))

    def links(self, obs: Obs, memory: Floats | None = None) -> Array:
        """Returns whom each agent hears, [E, N, K] numbers, itself first; -1: nobody."""
        assert isinstance(obs, dict)
        worlds = len(obs[VIEW])
        if memory is None:
            memory = np.zeros((worlds, self.memory), dtype=np.float32)
        with torch.inference_mode():
            links = self._listen(obs, memory)[1]
        who = links.who.view(worlds, self.agents, -1) % self.agents
        return who.masked_fill(~links.heard.view_as(who), -1).cpu().numpy()

    def scores(self, obs: Any, memory: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        view, worlds = obs[VIEW], obs[VIEW].shape[0]  # len() would be a constant of a graph
        if memory is None:
            memory = torch.zeros(worlds, self.memory, device=view.device)
        h = memory.view(-1, self.online.memory)
        links = self.listen(view, obs[PLACE], h)
        q, after = self.online(view.flatten(0, 1), h, links)
        return q.view(worlds, -1), after.view(memory.shape)

    @torch.inference_mode()
    def _step(self, obs: dict[str, Array], memory: Floats) -> tuple[Array, Floats, Array]:
        """Returns [E, N, A] values, the memory after, and who hears whom [E, N, N]."""
        seen, links, h = self._listen(obs, memory)
        q, after = self.online(seen[VIEW].flatten(0, 1), h, links)
        worlds = len(memory)
        return (
            q.view(worlds, self.agents, -1).cpu().numpy(),
            after.view(worlds, -1).cpu().numpy(),
            comm_mask(links, self.agents).view(worlds, self.agents, -1).cpu().numpy(),
        )

    def _listen(
        self, obs: dict[str, Array], memory: Floats
    ) -> tuple[dict[str, Tensor], Links, Tensor]:
        device = self.online.head.weight.device
        seen = tensors(obs, device)
        h = torch.from_numpy(memory).to(device).view(-1, self.online.memory)
        return seen, self.listen(seen[VIEW], seen[PLACE], h), h

    def _window(self, batch: Batch) -> Window:
        """Turns sequences of worlds into those of their agents, time first."""
        place = batch.obs[PLACE].transpose(0, 1)  # [T + 1, B, N, 2]
        moments, worlds, agents = place.shape[:3]
        links = neighbours(place.flatten(0, 1), radius=self.radius, most=self.config.neighbours)
        links = Links(links.who % (worlds * agents), links.heard, links.where)
        links = Links(*(part.view(moments, worlds * agents, -1) for part in links))
        links = links._replace(heard=_allowed(links, batch.extras[COMM], batch.mask))
        there = (place[:-1, ..., 0] >= 0).flatten(1)

        def each(leaf: Tensor) -> Tensor:  # [B, T] → [T, B * N]
            return leaf.transpose(0, 1)[..., None].expand(-1, -1, agents).flatten(1)

        return Window(
            view=batch.obs[VIEW].transpose(0, 1).flatten(1, 2),
            links=links,
            action=batch.action.transpose(0, 1).flatten(1),
            reward=batch.obs[REWARD].transpose(0, 1)[1:].flatten(1),
            discount=each(batch.discount),
            mask=each(batch.mask) * there,
            memory=batch.extras[MEMORY].view(worlds * agents, -1),
            weight=batch.weight[:, None].expand(-1, agents).flatten(),
        )

    def _then(self, batch: Batch) -> Tensor:
        """Returns what actors thought of what they did, [T, B * N]."""
        q: Tensor = batch.extras[VALUES].gather(3, batch.action[..., None]).squeeze(3)
        return q.transpose(0, 1).flatten(1)


HEARD: dict[Talk, Callable[[Team, Tensor, Tensor, Links], Tensor]] = {  # of those nearby
    Talk.NEAR: lambda team, view, memory, links: links.heard,
    Talk.SELECTIVE: Team.matters,
    Talk.NONE: lambda team, view, memory, links: links.heard & _first(links),
}


def _first(links: Links) -> Tensor:
    """Is true of everybody's first link, which is the one to itself, [K]."""
    return torch.arange(links.heard.shape[-1], device=links.heard.device) == 0


def cared(reward: Tensor, links: Links, care: float) -> Tensor:
    """Returns rewards [T, S] less a share of what those lose whom an agent hears, itself aside.

    Somebody at home earns nothing by standing in the way of others, and nothing by letting them
    pass: so it would stay for ever. PRIMAL (Sartoretti et al. 2019) pays for blocking instead.
    """
    if not care:
        return reward
    steps = len(reward)
    who, heard = links.who[:steps, :, 1:], links.heard[:steps, :, 1:]
    lost = reward.clamp(max=0.0).gather(1, who.flatten(1)).view(who.shape)
    return reward + care * (lost * heard).sum(2)


def backed_up(value: Tensor, reward: Tensor, discount: Tensor, there: Tensor, times: int) -> Tensor:
    """Returns what comes of steps, [T, ...], by the values [T + 1, ...] that lie `times` ahead.

    Where no step was (not `there`) nothing is backed up, so an episode's end bootstraps from its
    own value; a step nearer than `times` to the window's end bootstraps there.
    """
    ahead = value
    for _ in range(times):
        before = torch.where(there, reward + discount * ahead[1:], value[:-1])
        ahead = torch.cat([before, value[-1:]])
    return ahead[:-1]


def unroll(net: Any, window: Window, burn_in: int) -> Tensor:
    """Returns the values of all actions, [T + 1, S, A]; no gradient reaches into the burn-in."""
    with torch.no_grad():
        early, h = _unrolled(net, window, range(burn_in), window.memory)
    late, _ = _unrolled(net, window, range(burn_in, len(window.view)), h)
    values: Tensor = net.values(torch.stack(early + late))
    return values


def _unrolled(net: Any, window: Window, moments: range, h: Tensor) -> tuple[list[Tensor], Tensor]:
    """Returns the memories after each of some moments."""
    if not len(moments):
        return [], h
    part = slice(moments.start, moments.stop)
    views = window.view[part]
    features = net.see(views.flatten(0, 1)).view(*views.shape[:2], -1)
    heard = net.heard(Links(*(whole[part] for whole in window.links)))
    each = (
        [None] * len(moments)
        if heard is None
        else list(map(Heard._make, zip(*(part.unbind() for part in heard), strict=True)))
    )
    memories = []
    for t, seen, told in zip(moments, features.unbind(), each, strict=True):
        if window.fresh is not None:
            h = h.masked_fill(window.fresh[t, :, None], 0.0)
        h = net.step(seen, h, told)
        memories.append(h)
    return memories, h


def comm_mask(links: Links, agents: int) -> Tensor:
    """Returns who hears whom, uint8 [A, N]: 1 at the numbers, within their world, of the heard."""
    mask = torch.zeros(len(links.who), agents, dtype=torch.uint8, device=links.who.device)
    return mask.scatter_reduce_(1, links.who % agents, links.heard.to(torch.uint8), "amax")


def _allowed(links: Links, comm: Tensor, mask: Tensor) -> Tensor:
    """Leaves of the links [T + 1, S, K] those that were used, by [B, T, N, N] and [B, T] masks.

    After an episode's or the sequence's last step nobody acted: there all neighbours are heard.
    """
    agents = comm.shape[-1]
    used = (comm > 0) | (mask == 0)[..., None, None]
    heard = used.transpose(0, 1).flatten(1, 2).gather(2, links.who[:-1] % agents)
    return torch.cat([links.heard[:-1] & heard, links.heard[-1:]])
