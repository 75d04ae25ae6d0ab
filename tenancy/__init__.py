"""Who may do how much: tenants, keys, limits, cache namespaces and usage."""
