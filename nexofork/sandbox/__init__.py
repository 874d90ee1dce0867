"""What keeps a run's commands to the run's own folders."""
