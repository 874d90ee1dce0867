"""What we claim, measured beside its peers."""
