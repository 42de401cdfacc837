"""Plugin that registers the backend for Stable-Baselines3 runs with the core."""

from rookery.plugins import Plugin

PLUGIN = Plugin(backends={"sb3": "rookery.sb3.backend:BACKEND"})
