"""Models: where they are, how they are read, and what they compute."""
