"""Afterstate network for Ludo: values the boards that actions lead to (TD-Gammon, Tesauro 1995).

    net: {custom: "rookery.games.ludo_network:Afterstates", kwargs: {width: 128}}

The board after an action, before the next roll, is known exactly. The network computes this board
for every legal action and estimates its value. A board is encoded as the sum of one embedding for
each token's position, so that the tokens of a player are interchangeable.
"""

from typing import Any

import torch
from torch import Tensor, nn

from rookery.envs.turn_based.game import MASK, OBSERVATION
from rookery.errors import ConfigError
from rookery.games.ludo import ACTIONS, BASE, DICE, HOME, OPPOSITE, RING, SAFE, SIX, TOKENS
from rookery.types import EnvSpec

PLACES = HOME - BASE + 1  # positions of a token
FACES = SIX + 1  # of a die, 0 for none
EXTRA = 2  # whether the action earns another roll


class Afterstates(nn.Module):
    """Afterstate network for Ludo: values of the 12 actions, [B, 12] for B observations.

    An action's value is that of the board it leads to; illegal actions have the value 0.
    """

    safe: Tensor

    def __init__(self, spec: EnvSpec, outputs: int, width: int = 128):
        super().__init__()
        if outputs != ACTIONS:
            raise ConfigError(
                f"Afterstates values {ACTIONS} actions of Ludo, got {outputs} outputs for "
                f"{spec.name}; use it with env.id ludo, algo.dueling false and algo.values mean"
            )
        self.board = nn.EmbeddingBag(2 * PLACES + FACES + EXTRA, width, mode="sum")
        self.hidden = nn.Linear(width, width)
        self.out = nn.Linear(width, 1)
        self.register_buffer("safe", torch.from_numpy(SAFE), persistent=False)
        nn.init.normal_(self.board.weight, std=0.1)

    def forward(self, obs: Any) -> Tensor:
        rows, action = (obs[MASK] > 0).nonzero(as_tuple=True)  # [K] each
        after = self._after(obs[OBSERVATION][rows], action)
        value = self.out(torch.relu(self.hidden(torch.relu(self.board(after)))))  # [K, 1]
        out = value.new_zeros(len(obs[MASK]), ACTIONS)
        values: Tensor = out.index_put((rows, action), value.squeeze(1))
        return values

    def _after(self, seen: Tensor, action: Tensor) -> Tensor:
        """Returns the Ludo boards after K actions as embedding indices, [K, 12].

        The 12 indices are those of four own tokens, the opponent's four tokens, the three dice (the
        used one as 0), and whether the action earned another roll.
        """
        place = (seen[:, : 2 * TOKENS] * (HOME + 1)).round().long() - 1
        dice = (seen[:, 2 * TOKENS : 2 * TOKENS + DICE] * SIX).round().long()
        own, other = place[:, :TOKENS], place[:, TOKENS:]
        die, token = action[:, None] // TOKENS, action[:, None] % TOKENS  # [K, 1]
        at, steps = own.gather(1, token), dice.gather(1, die)
        to = torch.where(at == BASE, 0, at + steps).clamp(max=HOME)
        hit = (other == (to + OPPOSITE) % RING) & ~self.safe[to]
        earned = hit.any(1, keepdim=True) | (to == HOME)
        return torch.cat(
            [
                own.scatter(1, token, to) - BASE,
                torch.where(hit, BASE, other) - BASE + PLACES,
                dice.scatter(1, die, 0) + 2 * PLACES,
                earned + 2 * PLACES + FACES,
            ],
            1,
        )
