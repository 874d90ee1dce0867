"""What is traced and measured. Library code uses the OpenTelemetry API alone; who runs it sets up the SDK."""
