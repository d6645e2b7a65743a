"""Layer 6: the machines Weft compiles for, one folder each; `registry.find_target` reads their names."""
