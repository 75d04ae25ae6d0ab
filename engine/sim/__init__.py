"""Serving in virtual time: the real engine core and the real dispatcher, only the model is not run.

How long a step takes comes from a model of the hardware (`step_time`), what arrives when from a
seeded workload. Nothing here reads a clock. See docs/simulator.md.
"""
