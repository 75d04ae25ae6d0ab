"""Engines as the gateway sees them: the port, its HTTP client, and the watch over replicas."""
