"""The main job in a minute: `python -m weft.demo` takes a model from its graph to one native call, and tunes it.

Every number is measured while you watch, on this machine; results are compared with those of the graph in numpy. It
needs nothing but Weft itself: ONNX Runtime and PyTorch are measured where they are installed. Nothing is left behind.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console, Group
from rich.panel import Panel
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

import weft
from weft.cli.bench_command import interleave
from weft.cli.facts import relative_error
from weft.cli.screen import seconds, size
from weft.compiler.reports.inputs import random_array
from weft.core.knobs import knobs
from weft.explore.stages import Compiled, asm_text, expressions_text, kernels
from weft.graph.interpreter import Interpreter
from weft.graph.ir import Graph
from weft.graph.passes.history import History, watching
from weft.models import make, names
from weft.tuner.database import Database
from weft.tuner.model import make_tuning
from weft.tuner.view import View, summary, task_table

WIDEST = 116
_MULTIPLY_ADD = re.compile(r"\b(fmla|fmadd|vfn?madd\w*|[su]dot|vpdpb\w+|tdp\w+)\b")


def code(text: str, language: str = "python") -> Syntax:
    """Text in colour, on the terminal's own background."""
    return Syntax(text.rstrip(), language, theme="ansi_dark", background_color="default", word_wrap=False)


def excerpt(text: str, most: int = 16) -> str:
    """The first lines of a program, without what its blocks declare (how axes are bound, what is read and written)."""
    text = re.sub(r"block (\w+)\(.*\)( where .*)?:", r"block \1(...):", text)
    lines = [line for line in text.splitlines() if not line.strip().startswith(("reads ", "writes "))]
    cut = [line if len(line) <= WIDEST - 6 else line[: WIDEST - 8] + " …" for line in lines[:most]]
    return "\n".join(cut + (["    ..."] if len(lines) > most else []))


def inner_loop(assembly: str, most: int = 10) -> str:
    """The piece of assembly with the most multiply-adds in one stretch."""
    blocks: list[list[str]] = [[]]
    for line in assembly.splitlines():
        if line.endswith(":"):
            blocks.append([])
        elif not line.strip().startswith((".", "#", "//")):
            # A comment begins with "# " or "//"; Arm writes numbers as #16.
            blocks[-1].append(re.split(r"# |//", line)[0].rstrip())
    best = max(blocks, key=lambda block: sum(bool(_MULTIPLY_ADD.search(line)) for line in block))
    first = next((i for i, line in enumerate(best) if _MULTIPLY_ADD.search(line)), 0)
    start = max(0, first - 2)
    shown = best[start : start + most]
    return "\n".join(shown + ([f"\t... {len(best) - start - most} more"] if len(best) > start + most else []))


# -------------------------------------------------------------------------------------------------------------- stages


def show_model(console: Console, graph: Graph) -> None:
    """The graph as it comes."""
    console.print(Rule(f"[bold]1  A model: {graph.name}"))
    weights = sum(array.size for array in graph.constants.values())
    console.print(
        f"{len(graph.nodes)} nodes, {weights:,} weights; built in, but an ONNX file or a PyTorch module does.\n"
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("operator", "node", "makes"):
        table.add_column(name)
    for node in graph.nodes[:12]:
        table.add_row(node.op, node.name, ", ".join(repr(value.type) for value in node.outputs), style="default")
    if len(graph.nodes) > 12:
        table.add_row(f"… and {len(graph.nodes) - 12} more")
    console.print(table)
    console.print()


def show_compiling(console: Console, module: weft.Module, history: History, took: float) -> None:
    """What the passes did, and what was fused into what."""
    console.print(Rule("[bold]2  Compiled: passes, fusion, one native call"))
    for run in history.runs:
        if repr(run.before) != repr(run.after):
            reason = run.reason.split(". ")[0].rstrip(".")
            console.print(f"  [cyan]{run.name}[/]  {reason}", highlight=False, overflow="ellipsis", no_wrap=True)
    form = module.specializations[0]
    fused = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("kernel", "computes", "makes"):
        fused.add_column(name)
    for launch in form.launches[:16]:
        made = ", ".join(repr(value.type) for value in launch.writes)
        fused.add_row(f"[bold]{launch.kernel.label}[/]", " → ".join(node.op for node in launch.nodes), made)
    if len(form.launches) > 16:
        fused.add_row(f"… and {len(form.launches) - 16} more")
    program = form.lowered.program
    console.print()
    console.print(fused)
    console.print()
    console.print(
        f"{len(form.launches)} kernels in [bold]{len(program.steps)} native call[/], {len(form.host_nodes)} nodes left "
        f"on the host; weights {size(sum(w.nbytes for w in program.weights))} packed ahead, an arena of "
        f"{size(program.arena_bytes)} instead of {size(program.unshared_bytes)}. Compiled in {took:.1f} s.\n"
    )


def show_kernel(console: Console, one: Compiled, measured: float) -> None:
    """One kernel from its expression to machine code, and why this schedule."""
    kernel = one.launch.kernel
    console.print(Rule(f"[bold]3  The kernel that takes longest: {kernel.label}"))
    console.print(Panel(code(excerpt(expressions_text(one), 12)), title="what to compute", border_style="dim"))
    taken = next((tried for tried in kernel.tried if tried and tried.cost), None)
    if taken is not None:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name, side in (("", "left"), ("family", "left"), ("estimated", "right"), ("point", "left")):
            table.add_column(name, justify=side)  # type: ignore[arg-type]
        offers = [(taken.name, taken.point, taken.cost), *taken.rivals[:4]]
        for at, (name, point, cost) in enumerate(offers):
            knobs_of = " ".join(f"{knob}={number}" for knob, number in point.items())
            table.add_row(
                "taken" if at == 0 else "rival", name, seconds(cost), knobs_of, style="bold" if at == 0 else "dim"
            )
        console.print(Panel(table, title="how: the plan, without a single trial", border_style="dim"))
        console.print(f"estimated {seconds(taken.cost)}, measured {seconds(measured)} (median, inside the model)\n")
    loops = code(excerpt(repr(kernel.scheduled), 14))
    console.print(Panel(loops, title=f"its loops after {len(kernel.trace)} schedule steps", border_style="dim"))
    console.print(Panel(code(inner_loop(asm_text(one)), "gas"), title="in its inner loop", border_style="dim"))
    console.print()


# --------------------------------------------------------------------------------------------------------------- peers


def onnx_runtime(graph: Graph, feeds: dict[str, Any], threads: int) -> Callable[[], Any] | None:
    """ONNX Runtime with the same model; None where it, or onnx, is not installed."""
    if find_spec("onnx") is None or find_spec("onnxruntime") is None:
        return None
    from weft.cli.reference import open_session
    from weft.cli.to_onnx import to_onnx

    session = open_session(to_onnx(graph), threads)
    return lambda: session.run(None, feeds)


def torch_eager(graph: Graph, feeds: dict[str, Any], threads: int) -> Callable[[], Any] | None:
    """PyTorch with the same layers; None where it is not installed, or the model has layers that are not here."""
    if find_spec("torch") is None:
        return None
    import torch

    layers: dict[str, Callable[..., Any]] = {
        "Conv": lambda n, x, w, b=None: torch.conv2d(x, w, b, n["strides"], n["pads"][:2], groups=n["group"]),
        "Relu": lambda n, x: torch.relu(x),
        "Flatten": lambda n, x: torch.flatten(x, 1),
        "Gemm": lambda n, x, w, b=None: torch.nn.functional.linear(x, w if n.get("transB") else w.T, b),
    }
    if any(node.op not in layers for node in graph.nodes):
        return None
    torch.set_num_threads(threads)
    known = {value: torch.from_numpy(np.ascontiguousarray(array)) for value, array in graph.constants.items()}
    known.update({value: torch.from_numpy(feeds[value.name]) for value in graph.inputs})

    def run() -> list[Any]:
        values = dict(known)
        with torch.inference_mode():
            for node in graph.nodes:
                given = [values[value] for value in node.inputs if value is not None]
                values[node.outputs[0]] = layers[node.op](node.attributes, *given)
        return [values[value].numpy() for value in graph.outputs]

    return run


def show_times(console: Console, graph: Graph, module: weft.Module, feeds: dict[str, Any], limit: float) -> None:
    """The time of a call beside that of others, in turns; the answers compared."""
    threads = weft.get_threads()
    console.print(Rule("[bold]4  Measured, in turns with what is installed here"))
    candidates: dict[str, Callable[[], Any]] = {"weft": lambda: module.run(None, feeds)}
    peers = {"ONNX Runtime": onnx_runtime(graph, feeds, threads), "PyTorch, eager": torch_eager(graph, feeds, threads)}
    candidates.update({name: call for name, call in peers.items() if call is not None})
    if len(candidates) == 1:
        arrays = [feeds[value.name] for value in graph.inputs]
        candidates["numpy, node by node"] = lambda: Interpreter().run(graph, arrays, {})
    want = Interpreter().run(graph, [feeds[value.name] for value in graph.inputs], {})
    samples = interleave(candidates, limit)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("", "median", "best", "weft is", "differs by"):
        table.add_column(name, justify="left" if not name else "right")
    ours = statistics.median(samples["weft"])
    for name, taken in samples.items():
        error = max(map(relative_error, candidates[name](), want))
        ratio = "" if name == "weft" else f"{statistics.median(taken) / ours:.2f} × as fast"
        table.add_row(name, seconds(statistics.median(taken)), seconds(min(taken)), ratio, f"{error:.0e}",
                      style="bold" if name == "weft" else "default")  # fmt: skip
    console.print(table)
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    busy = f" The machine was busy (load {load:.1f} on {cores} cores): take them with care." if load > cores else ""
    note = f"{len(samples['weft'])} rounds, {threads} threads each; differences are from numpy, of the largest number."
    console.print(Text(note + busy, style="dim"))
    console.print()


def show_tuning(console: Console, graph: Graph, budget: float) -> None:
    """A short search for faster schedules, live."""
    console.print(Rule(f"[bold]5  Tuned for {budget:g} s: schedules measured, a cost model that learns from them"))
    with (
        tempfile.TemporaryDirectory(prefix="weft-demo-") as folder,
        Database(Path(folder) / "records.sqlite") as database,
    ):
        tuning = make_tuning(graph, budget, "auto", None, None, database)
        with View(console) as view:
            tuning.run(view)
        console.print(task_table(tuning, 6))
    console.print(f"[bold]{summary(tuning)}[/]", highlight=False)
    console.print(Text("Never slower: a set of schedules is used only if the whole model measured faster.", "dim"))
    console.print()


NEXT = """\
weft explore resnet18              all of this for every kernel, on a page for your browser
weft compile model.onnx            your own model; weft bench, weft profile, weft compare beside others
weft tune model.onnx --budget 5m   five minutes of section 5
docs/tour.md                       the ideas of the TVM paper, each at work and measured, in ten minutes"""


def main(arguments: list[str] | None = None) -> None:
    """The demonstration."""
    parser = argparse.ArgumentParser(prog="python -m weft.demo", description=__doc__)
    parser.add_argument("--model", choices=names(), default="dqn", help="a built-in model (default dqn)")
    parser.add_argument("--tune", type=float, default=15.0, metavar="SECONDS", help="0: do not tune (default 15)")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long section 4 measures (default 2)")
    options = parser.parse_args(arguments)
    if not 0 <= options.tune <= 3600:
        parser.error("--tune is between 0 and 3600 seconds")
    begun = time.perf_counter()
    console = Console(width=min(Console().width, WIDEST + 4), highlight=False)
    graph = make(options.model)
    show_model(console, graph)
    start = time.perf_counter()
    with knobs.override(cache=False), watching() as history:
        module = weft.compile(graph)
    show_compiling(console, module, history, time.perf_counter() - start)
    random = np.random.default_rng(0)
    feeds = {v.name: random_array(v.tensor.dtype, v.tensor.static, random) for v in graph.inputs}
    with knobs.override(cache=False):
        profile = module.profile(feeds, seconds=0.3)
    longest = max((one for one in profile.kernels if one.kind == "kernel"), key=lambda one: one.seconds)
    launch = module.specializations[0].launches[longest.number]
    chosen = next(one for one in kernels(module) if one.launch.kernel.symbol == launch.kernel.symbol)
    show_kernel(console, chosen, longest.seconds)
    show_times(console, graph, module, feeds, options.seconds)
    if options.tune:
        show_tuning(console, graph, options.tune)
    took = Text(f"{time.perf_counter() - begun:.0f} s in all", style="dim")
    console.print(Rule("[bold]Where to go next"), Group(Text(NEXT), Text(), took))


if __name__ == "__main__":
    main()
