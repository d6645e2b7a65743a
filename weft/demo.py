"""A short tour: `python -m weft.demo` takes a matrix product from five lines of Python to machine code, and times it.

Every number is measured while you watch, on this machine, and every result is compared with numpy's.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.panel import Panel
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table

import weft
from weft import te
from weft.builder import Built, BuiltFunction
from weft.core.errors import ScheduleError
from weft.schedule.schedule import Schedule

Step = tuple[str, str, Callable[["Product"], None]]


class Product:
    """C = Aᵀ B of square matrices: the expression, its schedule, and arrays to run it on."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.A = te.placeholder((size, size), name="A")
        self.B = te.placeholder((size, size), name="B")
        self.k = te.reduce_axis((0, size), name="k")
        self.C = te.compute(
            (size, size), lambda y, x: te.sum(self.A[self.k, y] * self.B[self.k, x], axis=self.k), name="C"
        )
        self.schedule: Schedule = te.create_schedule(self.C.op)
        self.loops: dict[str, Any] = {}
        random = np.random.default_rng(0)
        self.a, self.b = random.random((2, size, size), "float32")
        self.want = self.a.T @ self.b

    def build(self) -> Any:
        """The compiled function of the schedule as it is now."""
        return weft.build(self.schedule, [self.A, self.B, self.C], target="native")

    def measure(self, seconds: float = 0.4) -> tuple[Any, float]:
        """The compiled function, and its speed in GFLOP/s (the best of the runs); the result is checked."""
        function = self.build()
        c = np.empty_like(self.want)
        best = fastest(lambda: function(self.a, self.b, c), seconds)
        np.testing.assert_allclose(c, self.want, rtol=1e-3)
        return function, self.gflops(best)

    def gflops(self, seconds: float) -> float:
        """Billions of operations in a second, of a product that took so long."""
        return 2 * self.size**3 / seconds / 1e9


def fastest(run: Callable[[], object], seconds: float) -> float:
    """The time of the fastest run within so many seconds (at least two runs)."""
    best, begin, runs = float("inf"), time.perf_counter(), 0
    while runs < 2 or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        run()
        best, runs = min(best, time.perf_counter() - start), runs + 1
    return best


# ------------------------------------------------------------------------------------------------------------- steps


def _tile(p: Product) -> None:
    stage = p.schedule[p.C]
    p.loops.update(zip(("yo", "xo", "yi", "xi"), stage.tile(*stage.op.axis, 32, 32)))


def _reorder(p: Product) -> None:
    stage, at = p.schedule[p.C], p.loops
    at["ko"], at["ki"] = stage.split(p.k, factor=8)
    stage.reorder(at["yo"], at["xo"], at["ko"], at["yi"], at["ki"], at["xi"])


def _vectorize(p: Product) -> None:
    p.schedule[p.C].vectorize(p.loops["xi"])


def _parallel(p: Product) -> None:
    p.schedule[p.C].parallel(p.loops["yo"])


def _registers(p: Product) -> None:
    """Starts afresh: a tile of 8 × 48 sums stays in registers while k runs over a packed panel of B."""
    s = p.schedule = te.create_schedule(p.C.op)
    local = s.cache_write(p.C, "local")
    yo, xo, yi, xi = s[p.C].tile(*s[p.C].op.axis, 8, 48)
    s[p.C].reorder(xo, yo, yi, xi)
    s[p.C].parallel(xo)
    s[p.C].vectorize(s[p.C].split(xi, factor=16)[1])
    local.compute_at(s[p.C], yo)
    y, x = local.op.axis
    (k,) = local.op.reduce_axis
    xv, xl = local.split(x, factor=16)
    ko, ki = local.split(k, factor=4)
    local.reorder(ko, ki, y, xv, xl)
    for loop in (ki, y, xv):
        local.unroll(loop)
    local.vectorize(xl)
    panel = s.cache_read(p.B, "global", [local])
    panel.compute_at(s[p.C], xo)
    panel.vectorize(panel.split(panel.op.axis[1], factor=16)[1])


STEPS: list[Step] = [
    ("tile", "yo, xo, yi, xi = s[C].tile(*s[C].op.axis, 32, 32)", _tile),
    ("reorder", "ko, ki = s[C].split(k, factor=8)\ns[C].reorder(yo, xo, ko, yi, ki, xi)", _reorder),
    ("vectorize", "s[C].vectorize(xi)", _vectorize),
    ("parallel", "s[C].parallel(yo)", _parallel),
]
REGISTERS = """\
CL = s.cache_write(C, "local")                     # sums in registers,
yo, xo, yi, xi = s[C].tile(*s[C].op.axis, 8, 48)   # 8 x 48 of them at a time
s[CL].compute_at(s[C], yo)
s[CL].reorder(ko, ki, y, xv, xl)                   # all of them for each k
s[CL].unroll(y); s[CL].unroll(xv); s[CL].vectorize(xl)
BP = s.cache_read(B, "global", [CL])               # 48 columns of B, packed,
s[BP].compute_at(s[C], xo)                         # for all rows of A
s[C].parallel(xo)                                  # (and a few splits)"""

EXPRESSION = """\
A, B = te.placeholder((n, n), name="A"), te.placeholder((n, n), name="B")
k = te.reduce_axis((0, n), name="k")
C = te.compute((n, n), lambda y, x: te.sum(A[k, y] * B[k, x], axis=k), name="C")
s = te.create_schedule(C.op)
print(s)"""


# ----------------------------------------------------------------------------------------------------------- showing


def code(text: str, language: str = "python") -> Syntax:
    """Text in colour, on the terminal's own background."""
    return Syntax(text.rstrip(), language, theme="ansi_dark", background_color="default", word_wrap=False)


def excerpt(text: str, most: int = 16) -> str:
    """The first lines of a program, without what its blocks declare (how axes are bound, what is read and written)."""
    text = re.sub(r"block (\w+)\(.*\)( where .*)?:", r"block \1(...):", text)
    lines = [line for line in text.splitlines() if not line.strip().startswith(("reads ", "writes "))]
    return "\n".join(lines[:most] + (["    ..."] if len(lines) > most else []))


def inner_loop(assembly: str, most: int = 14) -> str:
    """The piece of assembly with the most multiply-adds in one stretch."""
    blocks: list[list[str]] = [[]]
    for line in assembly.splitlines():
        if line.endswith(":"):
            blocks.append([])
        elif not line.strip().startswith((".", "#", "//")):
            # A comment begins with "# " or "//"; Arm writes numbers as #16.
            blocks[-1].append(re.split(r"# |//", line)[0].rstrip())
    best = max(blocks, key=lambda block: sum("fma" in line or "fmla" in line for line in block))
    first = next((i for i, line in enumerate(best) if "fma" in line or "fmla" in line), 0)
    start = max(0, first - 2)
    shown = best[start : start + most]
    return "\n".join(shown + ([f"\t... {len(best) - start - most} more"] if len(best) > start + most else []))


def show_steps(console: Console, p: Product) -> list[tuple[str, float]]:
    """Applies the steps one by one, and says how fast each is."""
    console.print(Rule("[bold]1  What to compute"))
    console.print(code(EXPRESSION))
    console.print(Panel(code(excerpt(str(p.schedule))), title="the program before any step", border_style="dim"))
    _, speed = p.measure()
    console.print(f"as it stands: [bold]{speed:.2f} GFLOP/s[/]\n")
    speeds = [("as written", speed)]
    console.print(Rule("[bold]2  How to compute it, one rewrite at a time"))
    for name, text, apply in STEPS:
        apply(p)
        _, speed = p.measure()
        speeds.append((name, speed))
        console.print(code(text))
        console.print(Panel(code(excerpt(str(p.schedule), 12)), border_style="dim", title=f"after {name}"))
        console.print(f"now [bold]{speed:.2f} GFLOP/s[/]\n")
    return speeds


def show_registers(console: Console, p: Product) -> float:
    """The schedule that keeps sums in registers."""
    console.print(Rule("[bold]3  Another schedule of the same program"))
    console.print(code(REGISTERS))
    _registers(p)
    function, speed = p.measure()
    console.print(Panel(code(excerpt(str(p.schedule), 30)), border_style="dim", title="the program"))
    console.print(
        Panel(code(inner_loop(function.built.assembly()), "gas"), title="in its inner loop", border_style="dim")
    )
    console.print(f"[bold]{speed:.2f} GFLOP/s[/]\n")
    return speed


def show_rest(console: Console, p: Product) -> None:
    """What else there is: errors, traces, other machines."""
    console.print(Rule("[bold]4  And besides"))
    try:
        te.create_schedule(p.C.op)[p.C].parallel(p.k)
    except ScheduleError as error:
        console.print("A step that would be wrong is refused:  s[C].parallel(k)")
        console.print(f"  [red]{type(error).__name__}: {error}[/]\n", highlight=False)
    console.print(f"A schedule is {len(p.schedule.trace)} recorded steps, which print as Python and replay:")
    console.print(code("\n".join(p.schedule.trace.as_python().splitlines()[:3]) + "\n..."))
    start = time.perf_counter()
    made = weft.build(p.schedule, [p.A, p.B, p.C], target="aarch64-unknown-linux-gnu")
    built = made.built if isinstance(made, BuiltFunction) else made  # on an Arm processor it is a function at once
    assert isinstance(built, Built)
    other = built.object_code()
    took = time.perf_counter() - start
    console.print(f"\nThe same schedule for an Arm processor: {len(other):,} bytes of object code in {took:.2f} s.\n")


def numpy_speed_of(p: Product) -> float:
    """numpy's GFLOP/s for the same product."""
    out = np.empty_like(p.want)
    return p.gflops(fastest(lambda: np.matmul(p.a.T, p.b, out=out), 0.6))


def show_table(console: Console, p: Product, speeds: list[tuple[str, float]], numpy_speed: float) -> None:
    """All speeds, beside numpy's."""
    table = Table(title=f"C = Aᵀ B, {p.size} × {p.size}, float32")
    table.add_column("schedule")
    table.add_column("GFLOP/s", justify="right")
    table.add_column("of numpy's", justify="right")
    for name, speed in speeds:
        table.add_row(name, f"{speed:.2f}", f"{speed / numpy_speed:.1%}")
    table.add_row("numpy (its BLAS)", f"{numpy_speed:.2f}", "", style="dim")
    console.print(table)
    console.print(
        f"Measured just now, each the best of its runs. Weft's parallel loops ran on {weft.get_threads()} threads; "
        "numpy takes as many as it likes. A product that is meant to be fast is blocked for every cache: "
        "`python -m benchmarks.operators` measures those that models get against MKL.",
        style="dim",
    )


def main(arguments: list[str] | None = None) -> None:
    """The tour."""
    parser = argparse.ArgumentParser(prog="python -m weft.demo", description=__doc__)
    parser.add_argument("--size", type=int, default=512, help="rows and columns of the matrices")
    options = parser.parse_args(arguments)
    if not 16 <= options.size <= 4096:
        parser.error("--size is between 16 and 4096")
    console = Console(width=min(Console().width, 120))
    p = Product(options.size)
    before = numpy_speed_of(p)
    speeds = show_steps(console, p)
    speeds.append(("registers, packing", show_registers(console, p)))
    show_rest(console, p)
    show_table(console, p, speeds, max(before, numpy_speed_of(p)))


if __name__ == "__main__":
    main()
