"""Programs that use nexofork, small enough to be read and real enough to be run; README.md says how."""
