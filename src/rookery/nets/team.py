"""The network of one agent in a team: it sees, remembers, listens to those nearby, and decides.

All agents have the same weights. Any number of them can be asked at once: [A] agents in a row, of
however many worlds, and `Links` say whom each one hears. So a world's number of agents is not part
of the network.

The plan is that of DHC (Ma, Luo, Ma 2021): convolutions → recurrent cell → rounds of attention over
neighbours, each followed by a second recurrent cell → dueling action values. Messages carry where
their sender stands, as in DCC (Ma, Luo, Pan 2021).
"""

import itertools
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BITS = 6  # of a view's code, one channel each
FIRST, MORE = 64, 32  # channels of the first convolution, and how many each further one adds


class Links(NamedTuple):
    """Whom each of A agents hears: up to K, itself first."""

    who: Tensor  # [A, K] int64, among the A
    heard: Tensor  # [A, K] bool: False is an empty place, whose `who` is the listener itself
    where: Tensor  # [A, K] int64: row * sight + column in the listener's view


class Sight(nn.Module):
    """Views → features. Each convolution takes one cell off every side, until one cell is left."""

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
        """Takes codes, uint8 [A, S, S]; returns [A, F]. On a GPU it computes in bfloat16."""
        planes = (view[..., None] & self.bits) != 0  # [A, S, S, 6]
        gpu = view.is_cuda
        with torch.autocast(view.device.type, torch.bfloat16, enabled=gpu, cache_enabled=False):
            x = planes.to(torch.bfloat16 if gpu else torch.float32)
            x = x.permute(0, 3, 1, 2)  # channels last in memory
            for layer in self.layers:
                x = F.relu(layer(x))
        return x.flatten(1).float()


class Cell(nn.GRUCell):
    """A recurrent cell (Cho et al. 2014) that a compiler can look into."""

    def forward(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        if not torch.compiler.is_compiling() or h is None:
            return super().forward(x, h)
        seen = F.linear(x, self.weight_ih, self.bias_ih).chunk(3, 1)
        known = F.linear(h, self.weight_hh, self.bias_hh).chunk(3, 1)
        reset, keep = (torch.sigmoid(a + b) for a, b in zip(seen[:2], known[:2], strict=True))
        new = torch.tanh(seen[2] + reset * known[2])
        return new + keep * (h - new)


class Heard(NamedTuple):
    """What agents need to know of their links when they listen; the same in every round."""

    who: Tensor  # [A * K]
    stand: Tensor  # [A, K, 2 * inner] what the senders' places add to keys and values
    bias: Tensor  # [A, K, 1] 0, or -inf where nobody is heard
    listening: Tensor  # [A, 1] bool: somebody else is heard


class Talk(nn.Module):
    """One round: everybody asks those it hears, and makes up its mind again."""

    def __init__(self, memory: int, heads: int, width: int, sight: int):
        super().__init__()
        self.heads, self.width, self.sight = heads, width, sight
        self.inner = inner = heads * width
        self.speak = nn.Linear(memory, 3 * inner)  # a question; a key and a value for others
        self.stand = nn.Linear(2 * sight, 2 * inner, bias=False)
        self.update = Cell(inner, memory)

    def forward(self, h: Tensor, heard: Heard) -> Tensor:
        """Takes and returns [A, M]."""
        ask, tell = self.speak(h).split((self.inner, 2 * self.inner), 1)
        message = attend(ask, tell, heard.who, heard.stand, heard.bias, self.heads)
        after: Tensor = torch.where(heard.listening, self.update(message, h), h)
        return after

    def heard(self, links: Links) -> Heard:
        """Takes links with any axes before [A, K]; so do those that it returns."""
        cells = torch.arange(self.sight, device=links.where.device)
        row = (links.where // self.sight)[..., None] == cells
        column = (links.where % self.sight)[..., None] == cells
        place = torch.cat([row, column], -1).to(self.stand.weight.dtype)
        bias = torch.zeros_like(links.heard, dtype=torch.float32)
        bias = bias.masked_fill(~links.heard, float("-inf"))[..., None]
        listening = links.heard.sum(-1, keepdim=True) > 1
        return Heard(links.who.flatten(-2), self.stand(place), bias, listening)


class TeamQ(nn.Module):
    """Action values of every agent, [A, actions], from its view, its memory and its neighbours."""

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
        self.see = Sight(sight, features)
        self.remember = Cell(features, memory)
        self.talk = Talk(memory, heads, width, sight) if rounds else None
        self.head = nn.Linear(memory, actions + 1)

    def forward(self, view: Tensor, memory: Tensor, links: Links) -> tuple[Tensor, Tensor]:
        """Takes [A, S, S] codes and [A, M]; returns [A, actions] values and the memory after."""
        after = self.step(self.see(view), memory, self.heard(links))
        return self.values(after), after

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles what is repeated: a step."""
        self.step = torch.compile(self.step, *args, dynamic=False, **kwargs)  # type: ignore[method-assign]

    def heard(self, links: Links) -> Heard | None:
        """Returns what `step` needs to know of links."""
        return None if self.talk is None else self.talk.heard(links)

    def step(self, features: Tensor, memory: Tensor, heard: Heard | None) -> Tensor:
        """Remembers and listens: returns the memory after, [A, M]."""
        h: Tensor = self.remember(features, memory)
        if self.talk is not None and heard is not None:
            for _ in range(self.rounds):
                h = self.talk(h, heard)
        return h

    def values(self, memory: Tensor) -> Tensor:
        """Returns a state's value plus centred advantages (Wang et al. 2016), [..., actions]."""
        out: Tensor = self.head(memory)
        value, advantage = out[..., :1], out[..., 1:]
        return value + advantage - advantage.mean(-1, keepdim=True)


def attend(
    ask: Tensor, tell: Tensor, who: Tensor, stand: Tensor, bias: Tensor, heads: int
) -> Tensor:
    """Returns what agents get to hear, [A, inner]: the values of others by how their keys fit."""
    count, reach, _ = bias.shape
    told = tell.index_select(0, who).view(count, reach, -1) + stand
    key, value = told.view(count, reach, 2, heads, -1).unbind(2)  # [A, K, heads, width]
    score = (ask.view(count, 1, heads, -1) * key).sum(-1)  # [A, K, heads]
    share = (score / key.shape[-1] ** 0.5 + bias).softmax(1)
    message: Tensor = (share[..., None] * value).sum(1).flatten(1)
    return message


def neighbours(place: Tensor, *, radius: int, most: int) -> Links:
    """Links every agent of E worlds to the nearest `most` others that it sees.

    `place` is [E, N, 2], -1 where there is nobody; the links are among E * N agents. Of two that
    are equally far the one with the lower number is nearer.
    """
    worlds, agents, _ = place.shape
    place = place.long()
    apart = place[:, None] - place[:, :, None]  # [E, N, N, 2] from the listener to the other
    there = place[..., 0] >= 0
    seen = (apart.abs().amax(-1) <= radius) & there[:, None] & there[:, :, None]
    number = torch.arange(agents, device=place.device)
    own = number[:, None] == number
    far = 2 * (radius + 1) ** 2
    rank = torch.where(seen, apart.square().sum(-1), far).masked_fill(own, -1) * agents + number
    reach = min(most + 1, agents)
    nearest = rank.topk(reach, -1, largest=False).indices  # [E, N, K], itself first
    heard = (seen | own).gather(2, nearest)
    empty = most + 1 - reach  # places that a small team leaves: nobody is heard there
    nearest, heard = F.pad(nearest, (0, empty)), F.pad(heard, (0, empty), value=False)
    who = torch.where(heard, nearest, number[:, None])
    offset = apart.gather(2, who[..., None].expand(-1, -1, -1, 2)) + radius
    base = torch.arange(worlds, device=place.device)[:, None, None] * agents
    where = offset[..., 0] * (2 * radius + 1) + offset[..., 1]
    return Links((who + base).flatten(0, 1), heard.flatten(0, 1), where.flatten(0, 1))
