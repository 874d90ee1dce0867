"""Faults at random against real processes, judged from outside."""
