"""What a server tells those who want to learn with it: what is trained, how, and until when.

It travels with the server's statistics. A client builds its run from it, and takes only what
`allowed_settings` lists.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from rookery.config.load import as_plain
from rookery.config.parse import parse
from rookery.config.schema import BackendName, Config, Engine, Inference, Mode
from rookery.errors import ConfigError, RefusedError
from rookery.server.allowed_settings import refuse_settings, told_keys

KEY = "notice"  # in the statistics
SECTIONS = ("env", "algo", "net", "replay", "actor", "learner")
ENDLESS = 1 << 62
OVER = frozenset({"over", "budget"})  # refusals that say that all is done


class Sharing(StrEnum):
    """What clients send."""

    GRADIENTS = "gradients"  # of one batch each; the server takes the steps
    FEDERATED = "federated"  # what a round of training has changed


@dataclass(frozen=True)
class Notice:
    """What is trained, and until when."""

    sharing: Sharing
    settings: dict[str, Any]  # of the scenario: SECTIONS and its name
    round_steps: int  # env steps of a client in a federated round
    deadline_s: float  # of a round
    until: int | None  # the version at which all is done; None: there is no such
    mu: float = 0.0  # FedProx: how strongly a client is held near what it was served

    def told(self) -> dict[str, Any]:
        """Returns it ready for JSON."""
        return {
            "sharing": self.sharing.value,
            "settings": self.settings,
            "round_steps": self.round_steps,
            "deadline_s": self.deadline_s,
            "until": self.until,
            "mu": self.mu,
        }

    @classmethod
    def heard(cls, stats: Mapping[str, Any]) -> "Notice":
        """Reads what a server has told."""
        try:
            said = stats[KEY]
            until = said["until"]
            return cls(
                Sharing(said["sharing"]),
                {key: said["settings"][key] for key in ("name", *SECTIONS)},
                int(said["round_steps"]),
                float(said["deadline_s"]),
                None if until is None else int(until),
                _hold(said["mu"]),
            )
        except (LookupError, TypeError, ValueError) as error:
            raise RefusedError(
                f"this server does not say what is trained ({type(error).__name__}: {error}); "
                "join one that `rookery serve` of this release has started",
                "notice",
            ) from error


def _hold(mu: Any) -> float:
    if not 0 <= float(mu) < math.inf:
        raise ValueError(f"mu is {mu}")
    return float(mu)


def portable(config: Config) -> Config:
    """Returns the settings of one run in one process, wherever that is."""
    refuse(config)
    return replace(
        config,
        run=replace(
            config.run,
            mode=Mode.SINGLE,
            engine=Engine.AUTO,
            env_steps=ENDLESS,
            episodes=None,
            minutes=None,
            callbacks=(),
        ),
        env=replace(config.env, check=False),
        actor=replace(
            config.actor, num=1, devices=(), inference=Inference.LOCAL, chunk_episodes=None
        ),
        replay=replace(config.replay, shards=None),
        learner=replace(config.learner, device="cpu", replicas=1, rendezvous=None),
    )


def refuse(config: Config) -> None:
    """Refuses what cannot be learned with others over a server."""
    if config.env.normalize_obs or config.env.normalize_reward:
        raise ConfigError(
            "env.normalize_obs and env.normalize_reward have statistics that no update carries to "
            "the others; use a wrapper in env.wrappers, such as NormalizeObservation, or leave "
            "them out"
        )
    if (
        config.backend is not BackendName.ROOKERY
        or config.selfplay.on
        or config.run.mode is Mode.DEVICE
    ):
        raise ConfigError(
            f"{config.name} trains with another library, against its own past or on a device, and "
            "clients of a server do not; choose another --scenario"
        )


def settings_of(config: Config) -> dict[str, Any]:
    """Returns what of a config is told to others: the keys that a client takes from a server."""
    sections = {
        section: {key: value for key, value in plain.items() if key in allowed}
        for section in SECTIONS
        for plain in [as_plain(getattr(config, section))]
        for allowed in [told_keys(section, config.algo.name)]
    }
    return {"name": config.name, **sections}


def config_of(notice: Notice) -> Config:
    """Returns the settings that a server has told, if it may set all of them."""
    try:
        refuse_settings(notice.settings)
    except (AttributeError, LookupError, TypeError) as error:
        raise RefusedError(
            f"the server's settings are none ({type(error).__name__}: {error}); join one that "
            "`rookery serve` of this release has started",
            "notice",
        ) from error
    return parse(Config, notice.settings)
