"""What keeps a run alive and restorable: checkpoints, locks, signals, litter."""
