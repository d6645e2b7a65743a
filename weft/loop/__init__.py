"""Layer 2: loop IR — explicit loops, blocks and buffers; printer, parser, verifier, interpreter, regions, passes."""
