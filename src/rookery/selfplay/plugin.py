"""Plugin that registers self-play opponents with the library."""

from rookery.plugins import Plugin

PLUGIN = Plugin(opponents="rookery.selfplay.run_opponents:BUILDER")
