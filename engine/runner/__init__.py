"""Runs a model for the engine core: lays out batches, computes them, samples."""
