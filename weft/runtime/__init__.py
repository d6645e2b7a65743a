"""Layer 1: arrays, the thread pool, and compiled functions. Imports core only."""
