"""Settings: `schema` defines them, `load` reads them, `fixed_settings` stay when a run resumes."""

from rookery.config.schema import Config

__all__ = ["Config"]
