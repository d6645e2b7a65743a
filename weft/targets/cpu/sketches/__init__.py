"""The sketches of the CPU, one family a file: each `match(unit)` gives a Sketch, or None for what it does not know."""
