"""What a child may do: filters, permissions, and a reader of shell commands."""
