"""Layer 9: the command line, `weft` or `python -m weft`. One command, one file; `main` puts them together.

    compile   a model to a file that runs on a machine without the compiler
    run       a model once, on files or random numbers
    bench     how fast, beside ONNX Runtime
    profile   where the time goes, kernel by kernel
    inspect   what the compiler makes of it, at any stage
    compare   node by node against ONNX Runtime or the numpy meaning: the first node that differs
    quantize  an 8-bit model from a float one
    export    a model in another form
    devices   what there is to run on
    doctor    what was found here, what is missing, and the command that mends it

What a command line asks for is done or refused (`given`): tests/cli/test_options.py has a row for every option.
A command module has `NAME`, `add(parser)`, which adds its options, and `run(given, screen)`, which gives the exit code.
"""
