"""One fork, start to report. Knows nothing of NATS; provider, tools and filters are arguments."""
