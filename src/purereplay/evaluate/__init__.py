"""The judge, the experiment loop, the run directory and its checkpoints."""
