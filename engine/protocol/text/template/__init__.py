"""Chat templates: Jinja's syntax, of which we evaluate a bounded and harmless subset ourselves."""
