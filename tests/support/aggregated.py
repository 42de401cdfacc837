"""Many updates made one as a server does it: added one after the other."""

from rookery.server.aggregate import Aggregation, Liars, Pending, gather
from rookery.types import Floats


def aggregate(
    method: Aggregation, updates: Floats, weights: Floats, liars: Liars | None = None
) -> Floats:
    """Returns one [P] update of K workers' [K, P]; `weights` is [K]."""
    gathered = gather(method, liars or Liars())
    pending = [Pending(str(number), float(weight)) for number, weight in enumerate(weights)]
    for update, each in zip(updates, pending, strict=True):
        gathered.add(update, each.weight)
    return gathered.combined(pending)
