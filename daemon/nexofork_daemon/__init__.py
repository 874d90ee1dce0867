"""The service around the engine. It starts with cross-process forks; nothing here runs yet."""
