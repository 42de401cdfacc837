"""Charts: `curve_plots`, `gantt`, `data_flow`, `perfetto`, `timeline_lanes`; pages:
`comparison_page`, `timeline_page`; `svg` below them.
"""
