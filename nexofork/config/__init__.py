"""Settings of commands and daemons: one TOML file, the environment and flags, checked together."""
