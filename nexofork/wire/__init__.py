"""What travels on NATS: pure values, validated where untrusted bytes come in."""
