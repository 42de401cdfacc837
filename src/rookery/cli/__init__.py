"""Command line: `main` runs a subcommand of `rookery`; each other module is one subcommand.

The exception is `tied_command`, which runs any subcommand and ends it when the parent process ends.
"""
