"""Layer 4: graph IR — typed dataflow, the table of operators, and passes over graphs."""
