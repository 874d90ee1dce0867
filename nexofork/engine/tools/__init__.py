"""The tools a daemon has built in."""
