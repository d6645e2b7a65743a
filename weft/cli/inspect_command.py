"""weft inspect MODEL --stage STAGE [--kernel NAME]: what the compiler makes of a model.

    graph       the model as it was read: one line a node, with types
    fused       what becomes one kernel, what runs on the host and why
    te          a kernel before it is scheduled: its tensor expressions, and the loops that they mean
    plan        which sketches were tried for the schedule of a kernel, with which numbers; why others were refused
    schedule    the steps that the schedule of a kernel is made of
    loops       the scheduled loops of a kernel
    lowered     the same after the target's passes, as the code generator takes them
    llvm        the LLVM IR that is generated
    asm         the assembly of the optimised code

and for a device, instead of the last two, what its target can show:

    cuda, ptx, sass     CUDA C, NVIDIA's assembly language, machine code (by NVIDIA's tools, where they are)
    opencl              OpenCL C

--hash prints what the graph is known by after its passes: models of one hash get the same kernels, whatever their
weights and whichever door they came in by. Without --kernel the stages of kernels are printed for all of them. A kernel
is named by its number or part of its name. --print-after PASS prints the graph after a pass over it, and why there is
that pass; a name that changed nothing is answered with those that did.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from weft.cli.given import UsageError, refuse
from weft.cli.screen import Screen
from weft.cli.sources import add_compiling, add_inputs, add_model, input_shapes, open_graph, open_with_feeds
from weft.compiler import Module
from weft.compiler.module import bind_shapes
from weft.compiler.passes import for_target, optimize
from weft.compiler.precision import check_precision, machine_of
from weft.core.html import printable
from weft.core.knobs import knobs
from weft.explore.stages import NATIVE_STAGES, STAGES, Compiled, kernels, specializations
from weft.graph.ir import Graph
from weft.graph.passes.history import watching
from weft.graph.structural import structure_key
from weft.targets.base import Target
from weft.targets.registry import known_stages


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add_model(parser)
    add_compiling(parser, runs=False)
    add_inputs(parser)
    parser.add_argument(
        "--stage", choices=["graph", "fused", *STAGES, *known_stages()], default="graph", help="what to show"
    )
    parser.add_argument(
        "--hash", action="store_true", help="what the graph is known by after its passes, whatever its weights"
    )
    parser.add_argument("--kernel", help="one kernel, by its number or a part of its name")
    parser.add_argument(
        "--print-after", metavar="PASS", help="the graph after a pass that changed it; 'all': every one"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command."""
    if given.stage == "graph" and given.print_after:
        refuse(given, "hash kernel input seed", "--print-after shows graphs")
        return _show_passes(given, screen)
    if given.stage == "graph":
        why = "the stage graph is the model before any of that matters"
        refuse(given, "target precision exact input seed kernel", why)
        if given.hash:
            key = structure_key(optimize(_graph(given, screen), {}, {}))
            screen.figures({"hash": key}) if screen.as_json else screen.line(key)
            return 0
        _show_text(repr(_graph(given, screen)), "graph", "text", screen)
        return 0
    refuse(given, "hash print_after", "they are about the stage graph")
    if given.stage == "fused":
        refuse(given, "kernel", "the stage fused shows which kernels there are: all of them")
    module = _compiled(given, screen)
    if given.stage == "fused":
        _show_fused(module, screen)
        return 0
    stage, language = _stage(given.stage, module.target)
    has_stage = [one for one in kernels(module) if given.stage in STAGES or one.target.name == module.target.name]
    chosen = choose(has_stage, given.kernel)
    if screen.as_json:
        screen.figures({"kernels": [{"kernel": one.title, given.stage: stage(one)} for one in chosen]})
        return 0
    comment = {"llvm": ";", "c": "//", "cuda": "//"}.get(language, "#")
    for one in chosen:
        screen.code(f"{comment} {one.title}: {', '.join(node.op for node in one.launch.nodes)}\n{stage(one)}", language)
        screen.line()
    return 0


def _show_passes(given: argparse.Namespace, screen: Screen) -> int:
    """The graph after each run of a pass."""
    with watching() as history, knobs.override(exact=given.exact or knobs.exact):
        machine = machine_of(given.target or "auto", given.precision)
        for_target(optimize(_graph(given, screen), {}, {}), machine, check_precision(given.precision, machine))
    found = [one for one in history.runs if given.print_after in (one.name, "all")]
    if not found:
        names = ", ".join(dict.fromkeys(one.name for one in history.runs))
        raise UsageError(f"no pass {given.print_after!r} changed the model; those that did: {names or 'none'}")
    if screen.as_json:
        screen.figures({"passes": [{"pass": one.name, "why": one.reason, "graph": repr(one.after)} for one in found]})
        return 0
    for one in found:
        _show_text(f"# after {one.name}: {one.reason}\n{one.after!r}", one.name, "text", screen)
    return 0


def _stage(name: str, target: Target) -> tuple[Callable[[Compiled], str], str]:
    """How a stage of a kernel is shown; those of the generated code are the target's own."""
    device = target.spec.device
    own = {} if device is None else device.stages
    if name in own:
        text, language = own[name]
        return lambda one: str(text(one.launch.kernel.program, target)), language
    if name not in STAGES or (device is not None and name in NATIVE_STAGES):
        code = list(own) or NATIVE_STAGES
        raise UsageError(f"the target {target.name} has no stage {name!r}: its code is shown by {', '.join(code)}")
    return STAGES[name]


def _graph(given: argparse.Namespace, screen: Screen) -> Graph:
    """The model as it was read; for the sizes that the command line gives, if it gives any."""
    import weft.ops  # noqa: F401 — fills the table of operators

    graph = open_graph(given, screen)
    return bind_shapes(graph, input_shapes(graph.inputs, given, screen) if given.size or given.shape else None)


def _compiled(given: argparse.Namespace, screen: Screen) -> Module:
    """The model compiled; run once where shapes are known only then."""
    if given.model.endswith(".weft"):
        raise UsageError(f"{given.model} is compiled already: this command takes an .onnx file or a built-in model")
    module, feeds, _ = open_with_feeds(given, screen)
    if any(_waits(one) for one in module.specializations) or not module.specializations:
        with screen.working("running once, for the shapes"):
            module.run(None, feeds)
    return module


def _waits(one: Any) -> bool:
    return any(hasattr(step, "executor") or hasattr(step, "inner") for step in one.lowered.program.steps)


def choose(found: list[Compiled], name: str | None) -> list[Compiled]:
    """The kernels that a text names; all of them for None."""
    if not found:
        raise UsageError("the model has no kernels: every node runs on the host (see --stage fused)")
    if name is None:
        return found
    if name.isdigit():
        chosen = [one for one in found if one.number == int(name)]
    else:
        chosen = [one for one in found if name.lower() in f"{one.launch.kernel.symbol} {one.title}".lower()]
    if not chosen:
        listed = ", ".join(one.title for one in found[:20]) + (", …" if len(found) > 20 else "")
        raise UsageError(f"no kernel is called {name!r}; there are {listed}")
    return chosen


def _show_text(text: str, key: str, language: str, screen: Screen) -> None:
    if screen.as_json:
        screen.figures({key: text})
    else:
        screen.code(text, language)


def _show_fused(module: Module, screen: Screen) -> None:
    numbers = {one.launch.kernel.symbol: one.number for one in kernels(module)}
    groups: list[dict[str, Any]] = []
    for one in specializations(module):
        for item in one.lowered.items:
            if hasattr(item, "kernel"):
                made = [f"{v.name}: {v.type!r}" for v in item.writes]
                where = f"kernel {numbers[item.kernel.symbol]}"
                groups.append({"where": where, "nodes": [_named(node) for node in item.nodes], "makes": made})
            elif hasattr(item, "reason"):
                groups.append({"where": "host", "nodes": [_named(item.node)], "reason": item.reason})
            elif hasattr(item, "source"):
                groups.append({"where": "view", "nodes": [_named(node) for node in item.group.nodes]})
    if screen.as_json:
        screen.figures({"groups": groups})
        return
    rows = [[g["where"], " → ".join(g["nodes"]), g.get("reason", "; ".join(g.get("makes", [])))] for g in groups]
    screen.table(["", "nodes", "makes"], [[printable(cell) for cell in row] for row in rows])


def _named(node: Any) -> str:
    return f"{node.op} {node.name}" if node.name else node.op
