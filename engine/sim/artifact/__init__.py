"""The experiments of the Virtual Token Counter paper, repeated with the real dispatcher and engine.

Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024; workloads, measure and results
are those of its public artifact (github.com/Ying1123/VTC-artifact). See docs/simulator.md.
"""
