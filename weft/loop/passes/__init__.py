"""Passes over loop IR: one pass, one file, one function that takes a Func and returns a Func."""
