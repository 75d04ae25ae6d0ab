"""Memory and scheduling: which tokens are computed each step, and where their KV blocks live."""
