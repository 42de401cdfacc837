"""The extra `server`: what the network needs, and nothing else does."""

from rookery.errors import ConfigError


def missing(error: ImportError) -> ConfigError:
    """Returns the error that says how to install it."""
    return ConfigError(
        f"a parameter server on the network needs {error.name}, which is not installed; "
        "pip install 'rookery[server]'"
    )
