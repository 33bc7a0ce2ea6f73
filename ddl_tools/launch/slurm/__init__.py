"""Runs as SLURM jobs: script, submit, what became of them, and a SLURM of emulated nodes."""
