"""Process and machine utilities: `signals` (Ctrl+C and SIGTERM), `watchdog` (hung environments),
`supervision` (restarts of processes), `timeouts`, `machine` (cores, memory, file descriptors).
"""
