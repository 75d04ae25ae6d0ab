"""Who goes next, and where: a pool's fair queue and its tenants' limits, as pure cores."""
