"""Networks: torch modules and nothing else."""
