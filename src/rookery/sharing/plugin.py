"""Registers replay sharing between runs as a plugin of Rookery."""

from rookery.plugins import Plugin

PLUGIN = Plugin(
    replay_peers="rookery.sharing.run_peers:BUILDER",
    cleanup="rookery.sharing.cleanup:CLEANUP",
)
