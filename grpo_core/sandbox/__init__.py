"""Model-written text is run and read here, in isolated processes, and nowhere else."""
