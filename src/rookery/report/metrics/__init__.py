"""What is measured of a run: `meter` (rates), `trace` (who did what when), `bottleneck` (what
limits the run), `policy_lag`, `resource_usage`, `metric_names`.
"""
