"""Plugin that registers Stable-Baselines3 as a training backend (setting `backend: sb3`)."""

from rookery.plugins import Plugin

PLUGIN = Plugin(backends={"sb3": "rookery.sb3.backend:BACKEND"})
