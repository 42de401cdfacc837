"""Command line: `main` finds and runs the subcommand; other modules have one subcommand each.

`tied_command` runs any subcommand, and ends it when the parent process ends.
"""
