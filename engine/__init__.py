"""The inference engine: protocol, memory and scheduling, models, and the server around them."""
