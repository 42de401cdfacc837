"""Helpers of the command line: `arguments`, `output`, `output_path`, `abrupt_exit` (signals)."""
