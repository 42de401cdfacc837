"""Statistics over runs: `run_records` (reads them), `learning_curve`, `bootstrap` (intervals),
`comparison`, `comparison_tables`, `caveats` (what a comparison does not say).
"""
