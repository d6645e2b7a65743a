"""Layer 0: errors, data types, and names that every other layer uses."""
