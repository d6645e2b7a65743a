"""LLVM: a flat Func becomes LLVM IR text (`generate.generate`), then machine code (`compile.jit`, `emit_object`).

types       data types and literals as LLVM text
analysis    what is known about an index: its range, its divisors, whether it is a ramp
context     the text of a module and of the function being written
arithmetic  + - * / and comparisons, division that never traps, fused multiply-add
convert     casts, and the 16-bit floats
memory      loads and stores: contiguous, strided, masked, gathered
math        exp, log, tanh, … as polynomials over vectors
power       pow, its exponent in float64
calls       calls: pure intrinsics, a target's own, external C functions
statements  loops, branches, allocation, and the outlined bodies of parallel loops
generate    the entry point
compile     optimisation, just-in-time linking, object files, shared libraries
child       the process that compiles for machines other than this one
"""
