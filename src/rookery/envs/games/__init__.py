"""Games for several players: batches of them, and players that need no learning."""
