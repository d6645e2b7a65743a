"""If, Loop and Scan in native code.

bodies     a subgraph that is compiled once that is worth it
parts      what an operator with subgraphs consists of: kernels, views, branches, loops
code       pieces of LLVM IR: frames, blocks that count who holds them
llvm_ir    those parts as one function
form       that function as a native call
"""
