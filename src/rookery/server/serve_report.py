"""Output of `rookery serve`: progress, the server's address, the command of clients."""

import json
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rookery.files import replace_file
from rookery.server.http.client_keys import Keys
from rookery.server.parameter_server import ParameterServer
from rookery.terminal import output

if TYPE_CHECKING:
    from rookery.server.run_server import Plan

PLACE = "address.json"  # in a server's folder


def progress(server: ParameterServer) -> str:
    """Returns a line about a server's progress."""
    stats = server.get_server_stats()
    words = [f"version {stats['version']}", f"{len(stats['workers'])} clients"]
    if stats.get("epsilon") is not None:
        words.append(f"epsilon {stats['epsilon']:.3g} of {stats['target_epsilon']:g}")
        if stats["joined"] < stats["quorum"]:
            words.append(f"rounds wait until {stats['quorum']} have joined")
    if stats["quarantined"]:
        words.append(f"in quarantine: {', '.join(stats['quarantined'])}")
    if stats["trouble"]:
        words.append(stats["trouble"])
    return ", ".join(words)


class Place(NamedTuple):
    """The address of a server, and what clients need to connect."""

    url: str = "URL"
    ca: str | None = None  # file with the certificate that they trust
    certified: bool = False  # whether they show a certificate of their own


def read_place(run_dir: Path) -> Place:
    """Returns the last address of the server of a run folder; `URL` if it was never started."""
    try:
        return Place(**json.loads((run_dir / PLACE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return Place()


def welcome(plan: "Plan", url: str, server: ParameterServer) -> None:
    """Prints a server's address and how clients join; writes the address down for `keys add`."""
    ca = None if plan.certificate is None else str(plan.certificate)
    place = Place(url, ca, certified=plan.client_ca is not None)
    replace_file(plan.run_dir / PLACE, json.dumps(place._asdict()).encode())
    output.notice(f"serving {plan.config.name} ({plan.sharing}) at {url}; {progress(server)}")
    clients = [] if plan.known_keys is None else list(Keys(plan.known_keys))
    if plan.known_keys is None:
        output.notice(f"  {join_line(place, None, 'NAME')}")
    elif not clients:
        keys = "" if plan.keys is None else f" --keys {plan.keys}"
        output.notice(
            f"no client has a key yet: rookery serve keys add NAME --run-dir {plan.run_dir}{keys}"
        )
    for client in clients[:8]:
        output.notice(f"  {join_line(place, plan.known_keys, client)}")
    if plan.until is not None:
        output.notice(f"until version {plan.until}")


def join_line(place: Place, keys: Path | None, client: str) -> str:
    """Returns the command with which a client joins."""
    words = [f"rookery join {place.url} --client {client}"]
    if keys is not None:
        words.append(f"--key-file {key_file(keys, client)}")
    if place.certified:
        words.append("--tls-cert CERTIFICATE --tls-key PRIVATE_KEY")
    if place.ca is not None:
        words.append(f"--ca {place.ca}")
    return " ".join(words)


def key_file(keys: Path, client: str) -> Path:
    """Returns the file with a client's own key, which is copied to the client."""
    return keys.with_name(f"{client}.key")


def reachable(url: str) -> str:
    """Returns a URL that other hosts may use, where all addresses of this one were bound."""
    for everywhere in ("//0.0.0.0", "//[::]"):
        url = url.replace(everywhere, f"//{socket.gethostname()}")
    return url


class CommandOutcome(NamedTuple):
    """The result and the exit code of `rookery serve` or `rookery join`."""

    answer: dict[str, Any]
    exit_code: int
