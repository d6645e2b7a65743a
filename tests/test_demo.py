"""The tour runs, checks its own results, and shows what it promises."""

import pytest

from weft.demo import inner_loop, main


def test_the_tour(capsys):
    main(["--size", "64"])
    text = capsys.readouterr().out
    for part in ("for y in range(64)", "vectorized", "parallel", "GFLOP/s", "ScheduleError", "numpy", "object code"):
        assert part in text, part


def test_a_size_that_makes_no_sense(capsys):
    with pytest.raises(SystemExit):
        main(["--size", "3"])
    assert "between 16 and 4096" in capsys.readouterr().err


def test_the_inner_loop_is_found():
    assembly = "main:\n\tmov\ta, b\n.L1:\n\tload\tx\n\tvfmadd231ps\tx, y\n\tvfmadd231ps\tx, z # note\n.L2:\n\tret\n"
    assert inner_loop(assembly) == "\tload\tx\n\tvfmadd231ps\tx, y\n\tvfmadd231ps\tx, z"
