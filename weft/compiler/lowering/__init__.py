"""From a graph and its groups to a program: what runs where, and in which memory.

lower      kernels, host nodes, parts that wait for shapes
memory     the arena; weights: packed weights side by side; constants: weights that are let go of, and come back
native     drivers that call kernels in order; abi: how far each reaches, sealed in its name
"""
