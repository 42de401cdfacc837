"""Secure sums in one process: all four steps, with clients that leave in between."""

from typing import NamedTuple

import numpy as np

from rookery.server.secrets import Collector, Contributor
from rookery.server.sums import Terms

NEVER = 9


def terms(clients=5, size=4, bound=1.0, threshold=None):
    return Terms.fresh(size=size, bound=bound, clients=clients, threshold=threshold)


class Party(NamedTuple):
    terms: Terms
    server: Collector
    clients: dict[str, Contributor]

    @classmethod
    def of(cls, names, **given):
        agreed = terms(clients=len(names), **given)
        return cls(agreed, Collector(agreed), {name: Contributor(agreed, name) for name in names})

    def advertised(self, names=None):
        for name in names or self.clients:
            self.server.admit(self.clients[name].advertise())
        return self

    def shared(self, names=None):
        for name in names or self.clients:
            self.server.post(self.clients[name].share(self.server.roster()))
        return self

    def masked(self, updates):
        for name, update in updates.items():
            self.server.collect(self.clients[name].mask(self.server.deliver(name), update))
        return self

    def answered(self, names):
        for name in names:
            self.server.answer(self.clients[name].unmask(self.server.question()))
        return self


def summed(updates, *, left=None, threshold=None, bound=1.0):
    """Sums updates by client; `left` says whose step does not happen any more (1 to 4)."""
    step_of = {name: (left or {}).get(name, NEVER) for name in updates}
    size = len(next(iter(updates.values())))
    party = Party.of(list(updates), size=size, threshold=threshold, bound=bound)

    def there(step):
        return [name for name in updates if step_of[name] > step]

    party.advertised(there(1)).shared(there(2))
    party.masked({name: updates[name] for name in there(3)})
    return party.answered(there(4)).server.total()


def random_updates(clients, size=4, seed=0, bound=1.0):
    rng = np.random.default_rng(seed)
    return {f"c{i}": rng.uniform(-bound, bound, size).astype(np.float32) for i in range(clients)}
