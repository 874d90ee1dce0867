"""The service around the engine: takes fork requests from NATS, runs them, reports."""
