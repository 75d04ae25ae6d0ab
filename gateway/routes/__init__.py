"""The HTTP routes of both listeners, as plain ASGI applications that raise domain errors."""
