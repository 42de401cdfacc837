"""Self-play: past selves to play against, whom to meet, and how strong everybody is."""
