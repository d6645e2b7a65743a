"""Module files, as far as the compiler writes or reads them (the format: runtime/model/module_file.py).

store      writes files, and reads what runtime/model/stored.py does not run
check_file believes none of its numbers
link       the code of a form as a shared library
"""
