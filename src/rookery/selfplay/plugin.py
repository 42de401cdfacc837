"""Plugin that registers self-play opponents with the core."""

from rookery.plugins import Plugin

PLUGIN = Plugin(opponents="rookery.selfplay.run_opponents:BUILDER")
