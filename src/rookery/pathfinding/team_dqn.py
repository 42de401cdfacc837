"""Recurrent deep Q-learning for a team of agents that communicate with their neighbours.

After DHC (Ma, Luo, Ma 2021, "Distributed heuristic multi-agent path finding with communication")
and DCC (Ma, Luo, Pan 2021, "Learning selective communication for multi-agent path finding"), with
one difference: the loss includes every agent and every step of a sequence after its burn-in, where
both papers learn from the last step of one agent.

An observation is a dict for the N agents of one grid world: `view` uint8 [N, S, S], the S x S cells
around each agent with one bit per channel; `place` [N, 2], rows and columns (-1: an absent agent);
`reward` [N], each agent's reward of the last step. All agents act at once, and an action is [N].
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rookery.algorithms.algorithm import Acted, Loss, require_actions
from rookery.algorithms.dqn import QLearning
from rookery.algorithms.exploration import explore_agents, sample_categorical
from rookery.config.schema import EnvConfig, NetConfig
from rookery.networks.forward import tensors
from rookery.pathfinding.settings import Talk, TeamConfig
from rookery.pathfinding.team_network import LinkInputs, Links, TeamQ, neighbours
from rookery.types import Array, Batch, EnvSpec, Extra, Floats, Obs, TensorBatch

MEMORY, FRESH, COMM, VALUES = "memory", "fresh", "comm", "q"
VIEW, PLACE, REWARD = "view", "place", "reward"


class Window(NamedTuple):
    """A batch of S sequences of T steps, each of one agent, from one or several grid worlds.

    Each sequence has T + 1 observations: one before each step and one after the last step.
    """

    view: Tensor  # [T + 1, S, sight, sight] uint8
    links: Links  # communication graph, [T + 1, S, K] each
    action: Tensor  # [T, S] int64
    reward: Tensor  # [T, S]
    discount: Tensor  # [T, S] gamma, 0 after a termination
    mask: Tensor  # [T, S] 1 where there was a step to learn from
    memory: Tensor  # [S, M] recurrent state before the first step
    weight: Tensor  # [S] importance-sampling weight
    fresh: Tensor | None = None  # [T + 1, S] bool: an episode begins; None: at the first step only


class WindowLoss(NamedTuple):
    """The loss of a batch of sequences, with the TD errors and predictions of all its steps."""

    loss: Tensor  # []
    td_error: Tensor  # [T, S] absolute, 0 where the mask is 0; with a teacher, the mask itself
    mask: Tensor  # [T, S] 1 where the step counts in the loss
    prediction: Tensor  # [T, S] value of the action; with a teacher, 1 where the argmax agrees


AgentBatch: TypeAlias = Batch[Window, None, Tensor | None]


class TeamDQN(QLearning):
    """Recurrent DQN for a team: agents act on view, recurrent state and neighbours' messages."""

    batches_actors = True
    capturable = True

    def __init__(self, config: TeamConfig, net: NetConfig, env: EnvConfig, spec: EnvSpec):
        leaves = {leaf.name: leaf.shape for leaf in spec.obs}
        codes = (VIEW, "uint8") in {(leaf.name, leaf.dtype) for leaf in spec.obs}
        fits = codes and {PLACE, REWARD} <= set(leaves) and spec.action.several
        needs = "a team (view of uint8 `Codes`, place, reward; a choice for each agent)"
        require_actions(
            fits, config.name, needs, spec, "use rookery.pathfinding.world.team_env:Team"
        )
        self.config, self.spec, self.evaluate_stochastic = config, spec, config.temperature > 0
        self.sampling_temperature = config.temperature
        self.agents, sight, _ = leaves[VIEW]
        self.radius, self.choices = sight // 2, spec.action.sizes[0]
        self.neighbours = 0 if config.talk is Talk.NONE else config.neighbours  # at most
        self.online = TeamQ(
            sight=sight,
            actions=self.choices,
            features=net.memory,
            memory=net.memory,
            heads=config.heads,
            width=config.width,
            rounds=0 if config.talk is Talk.NONE else config.rounds,
        )
        self.set_network(self.online, tau=config.target_tau, period=config.target_period)
        self.memory = self.agents * net.memory
        self.extras = (
            Extra(MEMORY, (self.memory,), each=False, own=True),  # before the step
            Extra(FRESH, each=False),  # 1 where an episode begins
            Extra(COMM, (self.agents, self.agents), "uint8"),  # [receiver, sender] 1: an edge
            Extra(VALUES, (self.agents, self.choices)),  # the actor's values of all actions
        )

    def losses(
        self, batch: "TensorBatch | AgentBatch", *, step: int, rng: torch.Generator
    ) -> Iterator[Loss]:
        if isinstance(batch.obs, Window):  # sequences sampled on the device, one per agent
            loss_of = self.imitation_loss if self.config.taught else self.td_loss
            assert isinstance(batch.extras, Tensor)
            result, acted_q = loss_of(batch.obs), batch.extras
            priority = self.agent_priorities(result)
        else:
            fresh = (batch.extras[FRESH] > 0)[:, None].expand(-1, self.agents).flatten()
            result, acted_q = self.td_loss(self._window(batch), fresh), self._acted_q(batch)
            present = result.mask.amax(0)
            priority = self.world_priorities(self.agent_priorities(result), self.agents, present)
        count, prediction = result.mask.sum(), result.prediction.detach()
        if self.config.taught:
            facts = {"agreement": prediction}
        else:
            facts = {"q_mean": prediction, "q_drift": (prediction - acted_q).abs()}
        steps = count.clamp(min=1.0)
        metrics = {name: (fact * result.mask).sum() / steps for name, fact in facts.items()}
        yield Loss("q", result.loss, priority, metrics, count)

    def imitation_loss(self, window: Window) -> WindowLoss:
        """Returns the cross-entropy loss of the planner's actions, with the Q values as logits.

        In the result, `prediction` is 1 where the greedy action is the planner's action, else 0.
        Burn-in steps do not count.
        """
        scores = unroll(self.online, window, self.config.burn_in)[:-1]  # [T, S, A]
        mask = window.mask.clone()
        mask[: self.config.burn_in] = 0.0
        entropy = F.cross_entropy(scores.flatten(0, 1), window.action.flatten(), reduction="none")
        loss = (entropy.view_as(mask) * mask).sum() / mask.sum().clamp(min=1.0)
        agrees = scores.detach().argmax(2) == window.action
        return WindowLoss(loss, mask, mask, agrees.float())

    def td_loss(self, window: Window, fresh: Tensor | None = None) -> WindowLoss:
        """Returns the Huber loss of the n-step TD errors of a batch of S sequences.

        `fresh` [S] is True for sequences that begin at the start of an episode. There the recurrent
        state is exact, so their burn-in steps count in the loss too. None: burn-in steps of no
        sequence count, and they are unrolled without gradients.
        """
        q = unroll(self.online, window, 0 if fresh is not None else self.config.burn_in)
        prediction = q[:-1].gather(2, window.action[..., None]).squeeze(2)  # [T, S]
        with torch.no_grad():
            target = self._target(window, q.detach())
            steps = torch.arange(len(prediction), device=prediction.device)[:, None]
            late = steps >= self.config.burn_in
            mask = window.mask * (late if fresh is None else late | fresh)
        td_error = (target - prediction) * mask
        huber = F.smooth_l1_loss(td_error, torch.zeros_like(td_error), reduction="none")
        loss = (huber * window.weight).sum() / mask.sum().clamp(min=1.0)
        return WindowLoss(loss, td_error.detach().abs(), mask, prediction)

    def _target(self, window: Window, q: Tensor) -> Tensor:
        """Returns the n-step (double) Q-learning target values of S sequences of T steps, [T, S].

        `q` are the online network's Q values of all observations, [T + 1, S, actions].
        """
        next_q = unroll(self.target.network, window, 0)
        best = (q if self.config.double else next_q).argmax(2, keepdim=True)
        value = next_q.gather(2, best).squeeze(2)  # [T + 1, S]
        reward = shaped_rewards(window.reward, window.links, self.config.care)
        stepped = window.mask > 0
        return n_step_targets(value, reward, window.discount, stepped, self.config.n_step)

    def agent_priorities(self, result: WindowLoss) -> Tensor:
        """Returns the replay priorities of S sequences, [S]: eta * max + (1 - eta) * mean TD error.

        Each sequence is of one agent. Maximum and mean are over its absolute TD errors, as in R2D2.
        """
        count = result.mask.sum(0).clamp(min=1.0)
        return self._mix(result.td_error.amax(0), result.td_error.sum(0) / count)

    def world_priorities(
        self, priority: Tensor, agents: int, present: Tensor | None = None
    ) -> Tensor:
        """Returns replay priorities of grid worlds from the priorities [S] of all their S agents.

        That is eta * max + (1 - eta) * mean over the `agents` agents of each world. `present` [S]
        is 0 for absent agents (padding); None: all agents are present.
        """
        each = priority.view(-1, agents)
        if present is None:
            return self._mix(each.amax(1), each.mean(1))
        count = present.view(-1, agents).sum(1).clamp(min=1.0)
        return self._mix(each.amax(1), each.sum(1) / count)

    def _mix(self, largest: Tensor, mean: Tensor) -> Tensor:
        return self.config.eta * largest + (1.0 - self.config.eta) * mean

    def listen(self, place: Tensor) -> Links:
        """Returns the communication graph of N agents in each of E parallel grid worlds.

        `place` [E, N, 2] are the agents' rows and columns.
        """
        return neighbours(place, radius=self.radius, most=self.neighbours)

    def links_over_time(self, place: Tensor) -> Links:
        """Returns the communication graphs of B teams of N agents at T times, [T, B * N, K] each.

        `place` [T, B, N, 2] are the agents' rows and columns. At each time the agents are numbered
        from 0 to B * N - 1.
        """
        times, count = len(place), place.shape[1] * place.shape[2]
        who, heard, where = self.listen(place.flatten(0, 1))
        return Links(*(part.view(times, count, -1) for part in (who % count, heard, where)))

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
        """Chooses the actions [E, N] of N agents in E parallel grid worlds, epsilon-greedy.

        `memory` is the recurrent state; None: all worlds are at the start of an episode. With
        `noise` and a temperature above 0 actions are sampled from softmax(Q / temperature) instead
        of the argmax.
        """
        assert isinstance(obs, dict)
        worlds = len(obs[VIEW])
        if memory is None:
            memory = np.zeros((worlds, self.memory), dtype=np.float32)
        q, after, comm = self._step(obs, memory)
        temperature = self.config.temperature if noise else 0.0
        best = sample_categorical(q / temperature, rng) if temperature else q.argmax(2)
        action = explore_agents(best, self.choices, epsilon, self.config.explorers, rng)
        extras = {MEMORY: memory, FRESH: np.asarray(~memory.any(1)), COMM: comm, VALUES: q}
        acted = Acted(action, extras=extras, memory=after)
        if not values:
            return acted
        taken = np.take_along_axis(q, action[..., None], 2)[..., 0]
        return acted._replace(taken=taken.mean(1), best=q.max(2).mean(1))

    def links(self, obs: Obs) -> Array:
        """Returns the senders of the messages that each agent receives, in E parallel grid worlds.

        The result [E, N, K] has K agent numbers for each of N agents, itself first; -1: no edge.
        """
        assert isinstance(obs, dict)
        worlds = len(obs[VIEW])
        with torch.inference_mode():
            links = self.listen(tensors(obs, self.online.head.weight.device)[PLACE])
        who = links.who.view(worlds, self.agents, -1) % self.agents
        return who.masked_fill(~links.heard.view_as(who), -1).cpu().numpy()

    def scores(self, obs: Any, memory: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if memory is None:  # not by len(), which would be a constant of a graph
            memory = torch.zeros(obs[VIEW].shape[0], self.memory, device=obs[VIEW].device)
        q, after, _ = self._forward(obs, memory)
        return q.flatten(1), after

    @torch.inference_mode()
    def _step(self, obs: dict[str, Array], memory: Floats) -> tuple[Array, Floats, Array]:
        """Runs the Q-network for one step of N agents in each of E parallel grid worlds.

        Returns Q values [E, N, actions], next recurrent states, and communication masks [E, N, N].
        """
        device = self.online.head.weight.device
        q, after, links = self._forward(tensors(obs, device), torch.from_numpy(memory).to(device))
        comm = comm_mask(links, self.agents).view(len(memory), self.agents, -1)
        return q.cpu().numpy(), after.cpu().numpy(), comm.cpu().numpy()

    def _forward(self, obs: Any, memory: Tensor) -> tuple[Tensor, Tensor, Links]:
        """Returns Q values [E, N, actions], next recurrent states, and the communication graph."""
        links = self.listen(obs[PLACE])
        h = memory.view(-1, self.online.memory)
        q, after = self.online(obs[VIEW].flatten(0, 1), h, links)
        return q.view(obs[VIEW].shape[0], self.agents, -1), after.view(memory.shape), links

    def _window(self, batch: TensorBatch) -> Window:
        """Converts a replay batch of B sequences to B * N sequences of single agents, time first.

        A sequence of the replay batch holds the steps of one grid world with N agents.
        """
        assert isinstance(batch.obs, dict)
        place = batch.obs[PLACE].transpose(0, 1)  # [T + 1, B, N, 2]
        worlds, agents = place.shape[1:3]
        links = self.links_over_time(place)
        links = links._replace(heard=_used_links(links, batch.extras[COMM], batch.mask))
        present = (place[:-1, ..., 0] >= 0).flatten(1)

        def each(leaf: Tensor) -> Tensor:  # [B, T] → [T, B * N]
            return leaf.transpose(0, 1)[..., None].expand(-1, -1, agents).flatten(1)

        return Window(
            view=batch.obs[VIEW].transpose(0, 1).flatten(1, 2),
            links=links,
            action=batch.action.transpose(0, 1).flatten(1),
            reward=batch.obs[REWARD].transpose(0, 1)[1:].flatten(1),
            discount=each(batch.discount),
            mask=each(batch.mask) * present,
            memory=batch.extras[MEMORY].view(worlds * agents, -1),
            weight=batch.weight[:, None].expand(-1, agents).flatten(),
        )

    def _acted_q(self, batch: TensorBatch) -> Tensor:
        """Returns the Q values that the actors computed for the actions they took, [T, B * N].

        They are those of N agents in the B sequences of T steps of a replay batch.
        """
        q: Tensor = batch.extras[VALUES].gather(3, batch.action[..., None]).squeeze(3)
        return q.transpose(0, 1).flatten(1)


def shaped_rewards(reward: Tensor, links: Links, care: float) -> Tensor:
    """Returns rewards [T, S] plus `care` times the negative rewards of communication neighbours.

    They are the rewards of S agents in T steps. Without the added term an agent on its goal gets
    the same reward whether it blocks others or lets them pass, so it would never move away. PRIMAL
    (Sartoretti et al. 2019) punishes blocking instead.
    """
    if not care:
        return reward
    steps = len(reward)
    who, heard = links.who[:steps, :, 1:], links.heard[:steps, :, 1:]
    losses = reward.clamp(max=0.0).gather(1, who.flatten(1)).view(who.shape)
    return reward + care * (losses * heard).sum(2)


def n_step_targets(
    value: Tensor, reward: Tensor, discount: Tensor, stepped: Tensor, n: int
) -> Tensor:
    """Returns the n-step TD targets of T steps, [T, ...].

    They bootstrap from `value` [T + 1, ...] n steps ahead, or from the last value of the sequence
    if that is nearer. After an episode's last step the sequence has an extra entry without a step;
    there `stepped` is False, and the target is the entry's own value.
    """
    ahead = value
    for _ in range(n):
        before = torch.where(stepped, reward + discount * ahead[1:], value[:-1])
        ahead = torch.cat([before, value[-1:]])
    return ahead[:-1]


def unroll(net: Any, window: Window, burn_in: int) -> Tensor:
    """Unrolls the recurrent network over S sequences of T steps; returns Q values.

    The Q values, [T + 1, S, actions], include those of the observation after the last step. The
    first `burn_in` steps are computed without gradients.
    """
    with torch.no_grad():
        early, h = _unroll_part(net, window, range(burn_in), window.memory)
    late, _ = _unroll_part(net, window, range(burn_in, len(window.view)), h)
    values: Tensor = net.values(torch.stack(early + late))
    return values


def _unroll_part(
    net: Any, window: Window, moments: range, h: Tensor
) -> tuple[list[Tensor], Tensor]:
    """Unrolls the recurrent network over the time steps `moments`, from the recurrent state `h`.

    Returns a list of the recurrent states after each step, and the state after the last one.
    """
    if not len(moments):
        return [], h
    part = slice(moments.start, moments.stop)
    views = window.view[part]
    features = net.see(views.flatten(0, 1)).view(*views.shape[:2], -1)
    heard = net.heard(Links(*(whole[part] for whole in window.links)))
    each = (
        [None] * len(moments)
        if heard is None
        else list(map(LinkInputs._make, zip(*(part.unbind() for part in heard), strict=True)))
    )
    memories = []
    for t, seen, messages in zip(moments, features.unbind(), each, strict=True):
        if window.fresh is not None:
            h = h.masked_fill(window.fresh[t, :, None], 0.0)
        h = net.step(seen, h, messages)
        memories.append(h)
    return memories, h


def comm_mask(links: Links, agents: int) -> Tensor:
    """Returns the communication graph as a mask, uint8 [A, N]; 1: the column's agent sends.

    Rows are the A receiving agents, columns the N agents of the receiver's team.
    """
    mask = torch.zeros(len(links.who), agents, dtype=torch.uint8, device=links.who.device)
    return mask.scatter_reduce_(1, links.who % agents, links.heard.to(torch.uint8), "amax")


def _used_links(links: Links, comm: Tensor, mask: Tensor) -> Tensor:
    """Returns a mask [T + 1, S, K] of the communication edges that the actor's network used.

    S counts all agents of the batch, K the edges of an agent. `comm` [B, T, N, N] are the stored
    communication masks of B teams of N agents; `mask` [B, T] is 0 where no step was taken. After
    the last step of an episode or sequence no actions were chosen; there all edges count as used.
    """
    agents = comm.shape[-1]
    used = (comm > 0) | (mask == 0)[..., None, None]
    heard = used.transpose(0, 1).flatten(1, 2).gather(2, links.who[:-1] % agents)
    return torch.cat([links.heard[:-1] & heard, links.heard[-1:]])
