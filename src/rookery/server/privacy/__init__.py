"""Differential privacy: `noise` (clipping and noise), `privacy_budget` (the ledger),
`privacy_checks` (what would break the promise).
"""
