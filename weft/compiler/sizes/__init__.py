"""Sizes that change from call to call.

open_sizes   Python source that finds the numbers of a call from the shapes of its inputs
open_checks  what sizes must fulfil for the graph to make sense
deciding     inputs whose values decide shapes
background   forms for sizes that come again, compiled by another process (background_child)
"""
