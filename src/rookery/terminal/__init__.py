"""Helpers of the command line: parsing of arguments, output, checks of output files, signals."""
