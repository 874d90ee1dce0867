"""The tools that a child calls, and how each call reaches the one that runs it."""
