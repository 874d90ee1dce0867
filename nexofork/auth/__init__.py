"""Who may do what on the NATS server: keys, the configuration that grants them their roles, and the attacks on it."""
