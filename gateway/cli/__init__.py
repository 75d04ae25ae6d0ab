"""The `evenhand` command line."""
