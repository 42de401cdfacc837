"""The privacy ledger: the epsilon that rounds have spent so far, and its limit.

    ledger = Ledger(8.0, 1e-5, noise_multiplier=1.0, sample_rate=0.1, clients=1000, path=path)
    ledger.charge()  # before anything of a round is shown; raises BudgetError where it is too much
    ledger.epsilon   # what all rounds so far have cost, at the ledger's delta

Each round is a Gaussian mechanism on a Poisson sample of clients: every client takes part with
probability q = `sample_rate`, and the sum gets noise of z = `noise_multiplier` times the clipping
bound. Neighbours differ by one client, there or not there, with all it ever sends. Rounds are
composed as Rényi differential privacy (Mironov 2017; Mironov, Talwar & Zhang 2019) by dp-accounting
and converted to (epsilon, delta) in the end.

The file has the promise (target, delta, number of clients), and a ledger with another promise is
refused. It also has every round that was ever charged, with its own z and q: a restart with other
noise or another rate goes on from what is spent. A round is on the disk before `charge` returns.
One that is charged and then never shown, since the server was killed between the two, stays
charged.
"""

import hashlib
import json
import logging
import threading
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from rookery.errors import BudgetError, CheckpointError, ConfigError
from rookery.files import replace_file, sync_folder
from rookery.server.file_lock import lock_file
from rookery.server.privacy.privacy_checks import refuse_delta, refuse_numbers

FORMAT = 2
UNPROMISED = 1  # a format without the promise
LOCK = ".lock"


class Promise(NamedTuple):
    """The target epsilon, delta and number of clients, as clients were told at the first start."""

    target_epsilon: float
    delta: float
    clients: int

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self._asdict().items())


class Spent(NamedTuple):
    """A number of rounds with the same noise multiplier and sample rate."""

    noise_multiplier: float
    sample_rate: float
    rounds: int


@dataclass(eq=False)
class Ledger:
    """A privacy ledger: charges rounds, up to a target epsilon; thread-safe, for one server.

    Without a path it lasts as long as the object does.
    """

    target_epsilon: float
    delta: float
    _: KW_ONLY
    noise_multiplier: float
    sample_rate: float
    clients: int
    path: Path | str | None = None

    def __post_init__(self) -> None:
        refuse_delta(self.delta, self.clients)
        refuse_numbers(
            target_epsilon=self.target_epsilon,
            noise_multiplier=self.noise_multiplier,
            sample_rate=self.sample_rate,
        )
        self.spent: tuple[Spent, ...] = ()
        self._turn = threading.Lock()
        _accounting()  # missing: said now, and not after the first round
        self._file = None if self.path is None else Path(self.path)
        if self._file is not None:
            self._unlock = lock_file(
                self,
                self._file.with_name(self._file.name + LOCK),
                unusable=f"a privacy ledger cannot be kept at {self.path}",
                taken=f"the privacy ledger {self.path} is in use by another server; stop that one, "
                "or name another file for other clients",
            )
            self._open(self._file)

    def _open(self, path: Path) -> None:
        """Continues a ledger file or begins one; its promise is saved before clients read it."""
        try:
            promise, spent = read(path)
            if promise not in (None, self.promise):
                raise ConfigError(
                    f"the privacy ledger {path} promises {promise}, and {self.promise} was given; "
                    "start with these numbers, or with another ledger (--run-dir) for other clients"
                )
            if promise is None:
                write(path, self.promise, spent)
        except BaseException:  # raised again; the file must not stay locked
            self.close()
            raise
        self.spent = spent

    @property
    def promise(self) -> Promise:
        return Promise(self.target_epsilon, self.delta, self.clients)

    @property
    def rounds(self) -> int:
        """Number of rounds that have been charged, also by earlier servers."""
        return sum(spent.rounds for spent in self.spent)

    @property
    def epsilon(self) -> float:
        """Epsilon of all rounds so far."""
        return epsilon_of(self.spent, self.delta)

    def would_be(self) -> float:
        """Returns epsilon as it would be after one more round."""
        return epsilon_of(self._after(), self.delta)

    def charge(self) -> float:
        """Charges one round and returns epsilon with it; call it before the round is shown.

        Where epsilon would pass the target, nothing is charged and BudgetError raised. Where the
        round cannot be written down, CheckpointError: show nothing then either.
        """
        with self._turn:
            after = self._after()
            epsilon = epsilon_of(after, self.delta)
            if epsilon > self.target_epsilon:
                raise BudgetError(
                    f"round {self.rounds + 1} would raise epsilon from {self.epsilon:.4g} to "
                    f"{epsilon:.4g}, and {self.target_epsilon:g} at delta {self.delta:g} was "
                    "promised; end here, or begin anew with other clients or more noise"
                )
            if self._file is not None:
                write(self._file, self.promise, after)
            self.spent = after
            return epsilon

    def close(self) -> None:
        """Unlocks the file for another server; so does the end of this object or its process."""
        if self.path is not None:
            self._unlock()

    def _after(self) -> tuple[Spent, ...]:
        kind = (self.noise_multiplier, self.sample_rate)
        if self.spent and self.spent[-1][:2] == kind:
            return (*self.spent[:-1], Spent(*kind, self.spent[-1].rounds + 1))
        return (*self.spent, Spent(*kind, 1))


@lru_cache(maxsize=256)
def epsilon_of(spent: tuple[Spent, ...], delta: float) -> float:
    """Returns epsilon at this delta after all these rounds, by dp-accounting."""
    dp = _accounting()
    accountant = dp.rdp.RdpAccountant()
    for noise_multiplier, sample_rate, rounds in spent:
        noise = dp.GaussianDpEvent(noise_multiplier)
        accountant.compose(dp.PoissonSampledDpEvent(sample_rate, noise), rounds)
    return float(accountant.get_epsilon(delta))


def read(path: Path) -> tuple[Promise | None, tuple[Spent, ...]]:
    """Reads a ledger file: its promise (None: an earlier release wrote it) and its rounds.

    A file that is not there is empty.

    A damaged file is a CheckpointError: taken for an empty one, it would double the promise.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None, ()
    try:
        value = json.loads(raw)
        if value["format"] not in (UNPROMISED, FORMAT):
            raise ValueError(f"its format is {value['format']}")
        promise = None if value["format"] == UNPROMISED else Promise(*value["promise"])
        sealed = [promise, value["spent"]] if promise else value["spent"]
        if value["sha256"] != _seal(sealed):
            raise ValueError("its checksum is another")
        return promise, tuple(Spent(*each) for each in value["spent"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"the privacy ledger {path} cannot be read ({error}); put it back from a copy: without "
            "it nothing tells what clients have lost, and a new one is for new clients only"
        ) from error


def write(path: Path, promise: Promise, spent: Sequence[Spent]) -> None:
    """Writes a ledger atomically, for its user alone; waits until the disk has it and its name."""
    value = {"format": FORMAT, "promise": promise, "spent": spent}
    value["sha256"] = _seal([promise, spent])
    try:
        replace_file(path, json.dumps(value).encode())
        sync_folder(path.parent)
    except OSError as error:
        raise CheckpointError(
            f"the privacy ledger {path} cannot be written: {error}; make room there: a round that "
            "is not written down must not be shown"
        ) from error


def _seal(sealed: Any) -> str:
    return hashlib.sha256(json.dumps(sealed).encode()).hexdigest()


@cache
def _accounting() -> Any:
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError as error:
        raise ConfigError(
            "differential privacy is accounted for by dp-accounting, which is not installed; "
            "pip install 'rookery[dp]', or turn privacy off"
        ) from error
    # it names orders that it leaves out in each round; without them epsilon is larger, if anything
    logging.getLogger("absl").addFilter(lambda it: "failed to converge" not in it.getMessage())
    return dp_accounting
