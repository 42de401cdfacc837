"""What a terminal shows of a run: `live_panel` on a terminal, `plain_lines` in a pipe
(`open_console` chooses), `run_view` (the figures of both), `runs_table` (several runs).
"""
