"""The learner's floor: DQN updates in plain PyTorch on tensors that are already there.

    python benchmarks/floor.py --net 256,256 --batch 64 --double --dueling --weights --clip

No replay, no priorities, no reports: what is left of a learner step when everything around the
arithmetic costs nothing. Rookery's learner does the same arithmetic (the flags say which) and is
judged by the share of this speed it keeps. Reads nothing of Rookery, so that a change there
cannot move the floor. The last line on stdout is `{"value": updates per second}`.
"""

import argparse
import copy
import itertools
import json
import os
import time
from collections.abc import Callable
from typing import NamedTuple

os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import torch
from torch import Tensor, nn
from torch.nn import functional as F

OBS, ACTIONS = 4, 2  # CartPole's
READY = 64  # batches to cycle through
TARGET_PERIOD = 500  # updates between two copies into the target network
MAX_GRAD_NORM = 10.0  # with --clip
WARMUP_S = 0.5


class Batch(NamedTuple):
    obs: Tensor  # [B, OBS]
    action: Tensor  # [B] int64
    reward: Tensor  # [B]
    discount: Tensor  # [B]
    next_obs: Tensor  # [B, OBS]
    weight: Tensor  # [B]


class Dueling(nn.Module):
    """A state value plus centred advantages, from one output layer."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, obs: Tensor) -> Tensor:
        out = self.body(obs)
        value, advantage = out[:, :1], out[:, 1:]  # [B, 1], [B, A]
        return value + advantage - advantage.mean(dim=1, keepdim=True)


def network(widths: list[int], dueling: bool) -> nn.Module:
    layers = [
        part
        for before, after in itertools.pairwise([OBS, *widths])
        for part in (nn.Linear(before, after), nn.ReLU())
    ]
    body = nn.Sequential(*layers, nn.Linear(widths[-1], ACTIONS + dueling))
    return Dueling(body) if dueling else body


def batch(size: int) -> Batch:
    return Batch(
        obs=torch.randn(size, OBS),
        action=torch.randint(ACTIONS, (size,)),
        reward=torch.ones(size),
        discount=0.99 * (torch.rand(size) > 0.05),
        next_obs=torch.randn(size, OBS),
        weight=torch.rand(size),
    )


def target(net: nn.Module, frozen: nn.Module, given: Batch, double: bool) -> Tensor:
    """Returns the bootstrapped return, [B]."""
    with torch.no_grad():
        next_q = frozen(given.next_obs)  # [B, A]
        chooser = net(given.next_obs) if double else next_q
        best = chooser.argmax(dim=1, keepdim=True)
        return given.reward + given.discount * next_q.gather(1, best).squeeze(1)


def weighted(q: Tensor, wanted: Tensor, given: Batch) -> Tensor:
    return (F.smooth_l1_loss(q, wanted, reduction="none") * given.weight).mean()


def unweighted(q: Tensor, wanted: Tensor, given: Batch) -> Tensor:
    return F.smooth_l1_loss(q, wanted)


def learner(args: argparse.Namespace) -> Callable[[], None]:
    """Returns one update as a callable."""
    torch.manual_seed(args.seed)
    net = network([int(width) for width in args.net.split(",")], args.dueling)
    frozen = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    ready = itertools.cycle([batch(args.batch) for _ in range(READY)])
    cost = weighted if args.weights else unweighted
    count = itertools.count(1)

    def update() -> None:
        given = next(ready)
        wanted = target(net, frozen, given, args.double)
        q = net(given.obs).gather(1, given.action[:, None]).squeeze(1)
        loss = cost(q, wanted, given)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if args.clip:
            nn.utils.clip_grad_norm_(net.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        if next(count) % TARGET_PERIOD == 0:
            frozen.load_state_dict(net.state_dict())

    return update


def spend(update: Callable[[], None], seconds: float) -> float:
    """Returns updates per second."""
    updates, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        update()
        updates += 1
    return updates / spent


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--net", default="256,256", help="widths of the hidden layers")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--double", action="store_true")
    parser.add_argument("--dueling", action="store_true")
    parser.add_argument("--weights", action="store_true", help="importance weights in the loss")
    parser.add_argument("--clip", action="store_true", help="gradient norm of at most 10")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=2.0)
    return parser.parse_args()


def main() -> None:
    args = parse()
    torch.set_num_threads(1)
    update = learner(args)
    spend(update, WARMUP_S)
    print(json.dumps({"value": spend(update, args.seconds)}))


if __name__ == "__main__":
    main()
