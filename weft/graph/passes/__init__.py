"""Passes over graphs: one pass, one file, one function that takes a Graph and returns a Graph."""
