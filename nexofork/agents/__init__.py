"""Agents that a parent's model starts by a tool call: forks of itself, and named agents with a context of their own."""
