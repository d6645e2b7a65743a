"""What a compiled model is and what its time goes to.

report     kernels and where they come from, host nodes and why, memory
profile    the time of every kernel inside whole runs; cost counts what each has to do, profile_text writes it
recorder     what a profile notes while a model runs
inputs     arrays to try a model with
"""
