"""ONNX Runtime beside us: sessions for a model file or a graph, all intermediate results on request."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from weft.cli.given import UsageError
from weft.cli.to_onnx import to_onnx
from weft.graph.ir import Graph


def model_of(given: argparse.Namespace, graph: Graph) -> Any:
    """The ONNX model that the command line names: the file itself, or a built-in model written as one."""
    import onnx

    path = Path(given.model)
    return onnx.load(path) if path.is_file() else to_onnx(graph)


def open_session(model: Any, threads: int | None = None, optimised: bool = True) -> Any:
    """ONNX Runtime on the processor, for an ONNX model."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads:
        options.intra_op_num_threads = threads
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as problem:  # noqa: BLE001 — its errors share no class of their own
        raise UsageError(f"ONNX Runtime does not take this model: {str(problem).splitlines()[0]}") from problem


def run_session(session: Any, feeds: dict[str, Any]) -> list[Any]:
    """What ONNX Runtime gives for these inputs."""
    try:
        return list(session.run(None, feeds))
    except Exception as problem:  # noqa: BLE001 — its errors share no class of their own
        raise UsageError(f"ONNX Runtime does not run this model: {str(problem).splitlines()[0]}") from problem


def with_every_value(model: Any) -> tuple[Any, list[str]]:
    """The model with every value of its main graph as an output, and the names of its outputs in order."""
    import onnx

    made = onnx.ModelProto()
    made.CopyFrom(model)
    present = {output.name for output in made.graph.output}
    for node in made.graph.node:
        for name in node.output:
            if name and name not in present:
                present.add(name)
                made.graph.output.append(onnx.ValueInfoProto(name=name))
    return made, [output.name for output in made.graph.output]
