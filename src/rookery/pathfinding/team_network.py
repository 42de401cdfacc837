"""The Q-network of an agent in a team: view encoder, GRU, message passing, action values.

All agents share the weights. One call takes the A agents of any number of grid worlds. `Links` hold
the edges of their communication graph. So the network does not depend on team size.

The structure is that of DHC (Ma, Luo, Ma 2021): convolutions → GRU → message passing rounds, each
attention over neighbours followed by a second GRU → dueling action values. Messages carry the
position of their sender, as in DCC (Ma, Luo, Pan 2021).
"""

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BITS = 6  # of a view's code, one channel each
FIRST, MORE = 64, 32  # channels of the first convolution, and how many each further one adds


class Links(NamedTuple):
    """Communication graph: for each of A receiving agents up to K senders, itself first."""

    who: Tensor  # [A, K] int64: index of the sender, 0 to A - 1
    heard: Tensor  # [A, K] bool; False: no edge, and `who` is the receiver itself
    where: Tensor  # [A, K] int64: the sender's row * sight + column in the receiver's view


class ViewEncoder(nn.Module):
    """Convolutional encoder of an agent's square view; 3 x 3 kernels without padding."""

    bits: Tensor

    def __init__(self, sight: int, features: int):
        super().__init__()
        layers = sight // 2
        widths = [BITS, *(FIRST + MORE * i for i in range(layers - 1)), features]
        self.layers = nn.ModuleList(
            nn.Conv2d(inputs, outputs, 3) for inputs, outputs in itertools.pairwise(widths)
        )
        bits = torch.tensor([1 << bit for bit in range(BITS)], dtype=torch.uint8)
        self.register_buffer("bits", bits, persistent=False)

    def forward(self, view: Tensor) -> Tensor:
        """Encodes the views of A agents to features [A, F].

        `view` is uint8 [A, S, S]: S x S cells around each agent, with one bit per channel. On a GPU
        the convolutions run in bfloat16.
        """
        planes = (view[..., None] & self.bits) != 0  # [A, S, S, 6]
        gpu = view.is_cuda
        with torch.autocast(view.device.type, torch.bfloat16, enabled=gpu, cache_enabled=False):
            x = planes.to(torch.bfloat16 if gpu else torch.float32)
            x = x.permute(0, 3, 1, 2)  # channels last in memory
            for layer in self.layers:
                x = F.relu(layer(x))
        return x.flatten(1).float()


class CompilableGRUCell(nn.GRUCell):
    """A GRU cell (Cho et al. 2014) that torch.compile can fuse; weights as in nn.GRUCell."""

    def forward(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        if not torch.compiler.is_compiling() or h is None:
            return super().forward(x, h)
        seen = F.linear(x, self.weight_ih, self.bias_ih).chunk(3, 1)
        known = F.linear(h, self.weight_hh, self.bias_hh).chunk(3, 1)
        reset, keep = (torch.sigmoid(a + b) for a, b in zip(seen[:2], known[:2], strict=True))
        new = torch.tanh(seen[2] + reset * known[2])
        return new + keep * (h - new)


class LinkInputs(NamedTuple):
    """Communication graph of A agents with K senders each, as inputs of the attention.

    They are the same in every message passing round of a step.
    """

    who: Tensor  # [A * K] index of the sender
    stand: Tensor  # [A, K, 2 * inner] added to keys and values: the embedding of senders' positions
    bias: Tensor  # [A, K, 1] 0, or -inf where there is no edge
    listening: Tensor  # [A, 1] bool: the agent receives messages from at least one other agent


class CommunicationRound(nn.Module):
    """One message passing round: attention over the messages of neighbours, then a GRU update."""

    def __init__(self, memory: int, heads: int, width: int, sight: int):
        super().__init__()
        self.heads, self.width, self.sight = heads, width, sight
        self.inner = inner = heads * width
        self.speak = nn.Linear(memory, 3 * inner)  # a query; a key and a value for the receivers
        self.stand = nn.Linear(2 * sight, 2 * inner, bias=False)
        self.update = CompilableGRUCell(inner, memory)

    def forward(self, h: Tensor, heard: LinkInputs) -> Tensor:
        """Updates the recurrent states `h` of A agents by the messages that they receive.

        States are [A, M], before and after. An agent that receives no message from another agent
        keeps its state.
        """
        ask, tell = self.speak(h).split((self.inner, 2 * self.inner), 1)
        message = attend(ask, tell, heard.who, heard.stand, heard.bias, self.heads)
        after: Tensor = torch.where(heard.listening, self.update(message, h), h)
        return after

    def heard(self, links: Links) -> LinkInputs:
        """Converts a communication graph to the inputs of `forward`.

        The graph [..., A, K] has up to K senders for each of A agents.
        """
        cells = torch.arange(self.sight, device=links.where.device)
        row = (links.where // self.sight)[..., None] == cells
        column = (links.where % self.sight)[..., None] == cells
        place = torch.cat([row, column], -1).to(self.stand.weight.dtype)
        bias = torch.zeros_like(links.heard, dtype=torch.float32)
        bias = bias.masked_fill(~links.heard, float("-inf"))[..., None]
        listening = links.heard.sum(-1, keepdim=True) > 1
        return LinkInputs(links.who.flatten(-2), self.stand(place), bias, listening)


class TeamQ(nn.Module):
    """Q-network that all agents of a team share.

    Computes an agent's action values from its view, its recurrent state and received messages.
    """

    def __init__(
        self,
        *,
        sight: int,
        actions: int,
        features: int = 256,
        memory: int = 256,
        heads: int = 4,
        width: int = 32,
        rounds: int = 2,
    ):
        super().__init__()
        self.memory, self.rounds, self.sight = memory, rounds, sight
        self.see = ViewEncoder(sight, features)
        self.remember = CompilableGRUCell(features, memory)
        self.talk = CommunicationRound(memory, heads, width, sight) if rounds else None
        self.head = nn.Linear(memory, actions + 1)

    def forward(self, view: Tensor, memory: Tensor, links: Links) -> tuple[Tensor, Tensor]:
        """Returns action values [A, actions] of A agents and their next recurrent states [A, M].

        `view` is uint8 [A, S, S]: S x S cells around each agent, with one bit per channel. `memory`
        is the recurrent state [A, M].
        """
        after = self.step(self.see(view), memory, self.heard(links))
        return self.values(after), after

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles `step` with torch.compile; unrolling a sequence calls it once per time step."""
        self.step = torch.compile(self.step, *args, dynamic=False, **kwargs)  # type: ignore[method-assign]

    def heard(self, links: Links) -> LinkInputs | None:
        """Converts a communication graph to the inputs of `step`.

        Returns None if the network has no message passing rounds.
        """
        return None if self.talk is None else self.talk.heard(links)

    def step(self, features: Tensor, memory: Tensor, heard: LinkInputs | None) -> Tensor:
        """Returns the next recurrent states [A, M] of A agents.

        A GRU step on the view features is followed by all message passing rounds.
        """
        h: Tensor = self.remember(features, memory)
        if self.talk is not None and heard is not None:
            for _ in range(self.rounds):
                h = self.talk(h, heard)
        return h

    def values(self, memory: Tensor) -> Tensor:
        """Returns dueling action values (Wang et al. 2016) of recurrent states, [..., actions]."""
        out: Tensor = self.head(memory)
        value, advantage = out[..., :1], out[..., 1:]
        return value + advantage - advantage.mean(-1, keepdim=True)


def attend(
    ask: Tensor, tell: Tensor, who: Tensor, stand: Tensor, bias: Tensor, heads: int
) -> Tensor:
    """Returns the message that each of A agents receives, [A, inner]: multi-head attention.

    `ask` [A, inner] are the agents' queries, `tell` [A, 2 * inner] their keys and values. Each
    agent has up to K senders, whose indices are `who` [A * K]. `stand` are the embeddings of
    senders' positions, and `bias` is -inf where there is no edge.
    """
    count, reach, _ = bias.shape
    sent = tell.index_select(0, who).view(count, reach, -1) + stand
    key, value = sent.view(count, reach, 2, heads, -1).unbind(2)  # [A, K, heads, width]
    score = (ask.view(count, 1, heads, -1) * key).sum(-1)  # [A, K, heads]
    share = (score / key.shape[-1] ** 0.5 + bias).softmax(1)
    message: Tensor = (share[..., None] * value).sum(1).flatten(1)
    return message


def neighbours(place: Tensor, *, radius: int, most: int) -> Links:
    """Returns the communication graph of N agents in each of E grid worlds.

    Each agent receives messages from up to `most` other agents, the nearest ones within `radius`
    rows and columns. `place` [E, N, 2] are rows and columns, -1 for absent agents. In the graph,
    agents are numbered over all worlds, 0 to E * N - 1. Of two others at the same distance the
    lower number comes first.
    """
    worlds, agents, _ = place.shape
    place = place.long()
    apart = place[:, None] - place[:, :, None]  # [E, N, N, 2] from the receiver to the other
    there = place[..., 0] >= 0
    seen = (apart.abs().amax(-1) <= radius) & there[:, None] & there[:, :, None]
    number = torch.arange(agents, device=place.device)
    own = number[:, None] == number
    far = 2 * (radius + 1) ** 2
    rank = torch.where(seen, apart.square().sum(-1), far).masked_fill(own, -1) * agents + number
    reach = min(most + 1, agents)
    nearest = rank.topk(reach, -1, largest=False).indices  # [E, N, K], itself first
    heard = (seen | own).gather(2, nearest)
    empty = most + 1 - reach  # edges that do not exist in a small team
    nearest, heard = F.pad(nearest, (0, empty)), F.pad(heard, (0, empty), value=False)
    who = torch.where(heard, nearest, number[:, None])
    offset = apart.gather(2, who[..., None].expand(-1, -1, -1, 2)) + radius
    base = torch.arange(worlds, device=place.device)[:, None, None] * agents
    where = offset[..., 0] * (2 * radius + 1) + offset[..., 1]
    return Links((who + base).flatten(0, 1), heard.flatten(0, 1), where.flatten(0, 1))
