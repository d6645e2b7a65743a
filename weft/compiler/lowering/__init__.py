"""From a graph and its groups to a program: what runs where, and in which memory.

graph      a whole graph: fusion, items, program
items      what runs where: kernels, host nodes, parts that wait for shapes
lower      the items as a program
memory     the arena; weights: packed weights side by side; constants: weights that are let go of, and come back
native     drivers that call kernels in order; abi: how far each reaches, sealed in its name
"""
