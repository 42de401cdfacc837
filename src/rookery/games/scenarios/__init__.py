"""Scenarios (YAML files with the settings of runs) that train the games."""
