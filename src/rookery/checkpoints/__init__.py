"""Checkpoints and run folders: writing, verifying and reading them.

`checkpoint` (file format: write, verify, find the newest), `saver` (writes checkpoints in a thread
and deletes old ones), `run_folder` (files and lock of a run's folder, leftovers of killed runs),
`load_weights` (weights of the best, last or a numbered checkpoint).
"""
