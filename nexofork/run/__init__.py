"""One fork, from its first request to its result. Knows nothing of NATS; provider, tools and filters are arguments."""
