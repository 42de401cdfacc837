"""Scenario files (YAML settings of ready-made training runs) of path finding."""
