"""The gateway: an OpenAI-compatible API that authenticates, admits, queues fairly and meters."""
