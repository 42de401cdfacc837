"""Pages with charts, one HTML file each: `page` (parts, escaping, Markdown), `options` (lines,
intervals), `static/` (Apache ECharts, our shapes, the template); then `run_report`,
`comparison_page`, `timeline_lanes` with `timeline_page`, `flow_chart` and `perfetto`.
"""
