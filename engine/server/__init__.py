"""The engine process: one thread around the core, and the HTTP API in front of it."""
