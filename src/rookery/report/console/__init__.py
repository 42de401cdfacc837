"""What a terminal shows of a run: `plain_lines` (chooses, and writes lines into a pipe),
`live_panel`, `run_view` (the figures of both), `runs_table` (several runs).
"""
