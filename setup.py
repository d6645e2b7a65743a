"""Builds wheels of pure Python; with WEFT_NATIVE=1 the innermost modules of the compiler become native code.

    WEFT_NATIVE=1 pip wheel --no-build-isolation --no-deps .        needs the extra `native` and a C compiler
    make native                                                     in place, for this checkout

The modules below are those that a compile spends its Python seconds in. Their source is installed beside them, and is
what runs wherever the native ones are not. What users call with arguments of their own (`Schedule`, `Trace`) is not
among them: native code answers a wrong type with its own TypeError.
"""

import os

from setuptools import Extension, setup

MODULES = {
    "core": "dtypes",
    "expr": "classes nodes visit linear proof simplify bounds intervals intrinsics structural text value_rules",
    "loop": "ir visit tree regions printer verifier expr_rules",
    "loop/passes": """
        support unroll simplify_func hoist insert_prefetch reuse_storage check_bounds partition_loops store_runs
        vectorize flatten lower_blocks unswitch shift_tiles skip_zeros interleave_stores turn_loops
        transpose_stores
    """,
    "codegen/llvm": """
        analysis context types memory arithmetic statements abreast calls convert math power generate
    """,
    "schedule": "facts registry",
    "schedule/primitives": """
        attach cache domain independence inline layout limits loops marks matrix online operand padding reduction steps
        tensorize
    """,
    "plan": "contraction phases",
}


def extensions() -> list[Extension]:
    """The native modules, where they are asked for."""
    if os.environ.get("WEFT_NATIVE", "0") in ("", "0"):
        return []
    from mypyc.build import mypycify

    files = [f"weft/{folder}/{name}.py" for folder, names in MODULES.items() for name in names.split()]
    return mypycify(files, opt_level="2", debug_level="0", multi_file=True, group_name="weft")


setup(ext_modules=extensions())
