"""Proof that a change of the code is no change of the computation: two commits, the same weights.

    python -m benchmarks.proof --against 3988f80 --out runs/proof.md

Both commits are driven by their command lines alone. Reading order: `cases` (what is run),
`renames` (what the newer tree calls otherwise), `checkpoints` (renames in a copied run folder),
`trees` (two checkouts and their command lines), `play` (one case on one tree), `compare` (the
verdicts and the table).
"""
