"""Module files, as far as the compiler writes or reads them (the format: runtime/model/module_file.py).

store      writes files, and reads forms that runtime/model/stored.py does not run
load       a file as a model that can be compiled further
check_file believes none of its numbers
link       the code of a form as a shared library
"""
