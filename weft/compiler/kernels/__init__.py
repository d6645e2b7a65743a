"""From a fused group of nodes to machine code.

program    the group as one tensor program; layouts and places: how its operands lie in memory
build      the program scheduled, lowered and compiled, each once; constants packed ahead
workers    that work on all cores
inplace    outputs that may lie in the memory of an input; zeros: inputs that hold many
"""
