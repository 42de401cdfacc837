"""What `rookery serve` says: how far it is, where clients find it, how they join."""

import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rookery.server.http.client_keys import Keys

if TYPE_CHECKING:
    from rookery.server.run_server import Plan, Served


def progress(served: "Served") -> str:
    """Says how far it is."""
    stats = served.get_server_stats()
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


def welcome(plan: "Plan", url: str, served: "Served") -> None:
    """Says where clients find it and how they join."""
    clients = list(Keys(plan.keys_file))
    say(f"serving {plan.config.name} ({plan.sharing}) at {url}; {progress(served)}")
    if not clients:
        say(f"no client has a key yet: rookery serve --add-client NAME --keys {plan.keys_file}")
    for client in clients[:8]:
        say(f"  {join_line(plan, url, client)}")
    if served.notice.until is not None:
        say(f"until version {served.notice.until}")


def join_line(plan: "Plan", url: str, client: str) -> str:
    """Returns the command with which a client joins."""
    trust = "" if plan.certificate is None else f" --ca {plan.certificate}"
    key = key_file(plan.keys_file, client)
    return f"rookery join {reachable(url)} --client {client} --key-file {key}{trust}"


def key_file(keys: Path, client: str) -> Path:
    """Returns the file that a client's own key is put in, to be brought to the client."""
    return keys.with_name(f"{client}.key")


def reachable(url: str) -> str:
    """Returns a URL that other hosts may use, where all addresses of this one were bound."""
    for everywhere in ("//0.0.0.0", "//[::]"):
        url = url.replace(everywhere, f"//{socket.gethostname()}")
    return url


def say(message: str) -> None:
    sys.stderr.write(f"rookery: {message}\n")
    sys.stderr.flush()
