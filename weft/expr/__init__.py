"""Layer 1: scalar expressions — build, simplify, bounds, evaluate."""
