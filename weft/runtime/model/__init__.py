"""Whole models at run time, with numpy alone. Imports core and runtime only.

module       what the user holds and calls; fastcall: the short way through a call
program      steps, memory and numbers of a compiled form; runner: one call of it
module_file  the file on disk; manifest: what it says, checked; keys: who signed it
stored       a file as a module
"""
