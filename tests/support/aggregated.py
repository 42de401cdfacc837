"""Many updates made one as a server does it: added one after the other."""

from rookery.server.aggregate import Aggregation, Liars, gather
from rookery.types import Floats


def aggregate(
    method: Aggregation, updates: Floats, weights: Floats, liars: Liars | None = None
) -> Floats:
    """Returns one [P] update of K workers' [K, P]; `weights` is [K]."""
    gathered = gather(method, updates.shape[1], liars or Liars())
    for number, (update, weight) in enumerate(zip(updates, weights, strict=True)):
        gathered.add(str(number), update, float(weight))
    return gathered.combined()
