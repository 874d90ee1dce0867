"""NATS, and the only place that knows it: connection, streams, run log, pickup, blobs, presence, embedded server."""
