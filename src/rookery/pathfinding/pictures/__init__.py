"""Animations of path-finding episodes: `episode_svg` and `episode_gif`."""
