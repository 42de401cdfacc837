"""Settings: `schema` says what there is, `load` reads it."""

from rookery.config.schema import Config

__all__ = ["Config"]
