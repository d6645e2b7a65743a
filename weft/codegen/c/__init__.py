"""Code generation for the C family: plain C, OpenCL C and CUDA C, from one generator and a table of dialects."""
