"""Goldens of the choice: which schedule each of some 150 workloads gets on six fixed machines.

    make goldens                                  rewrites them; the difference is reviewed like code
    python -m tests.goldens --show conv_3x3_120_120_28 --target avx2       the steps of one, as Python
    python -m tests.goldens --compare COMMIT      what changed since a commit: choices, steps, lowered programs

Pure Python: no hardware, no clock. A workload is a small graph that takes the whole way of a model (passes, fusion,
layouts, schedules) up to the scheduled programs. The golden of a kernel is a line for each sketch that stands, with its
point and its estimate, the refusals on the way, and its steps.
"""
