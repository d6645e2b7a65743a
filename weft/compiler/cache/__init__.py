"""Compiled models on disk.

models     a compiled form by the hash of what made it
code_key   the code of users' operators, as part of that hash
files      a model's file to a module, unread where its bytes are known
"""
