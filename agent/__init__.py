"""What answers: the engine, the live version, the gateway, and the jobs beside it."""
