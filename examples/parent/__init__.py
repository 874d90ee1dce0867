"""The parts of `examples.parent_agent`: its terminal, its conversation, its children, and its commands."""
