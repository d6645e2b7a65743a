"""Models on a machine with memory of its own.

runner     weights, slots and launches: one call
arrays     arrays in the device's memory; module: a module that takes and gives them
store      device programs as plain data
profile    the time of every kernel by the device's clock
"""
