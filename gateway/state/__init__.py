"""Where the gateway's shared state comes from: the tenancy database."""
