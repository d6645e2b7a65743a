"""A saved model in a fresh process: import, load and first call, beside ONNX Runtime's import, session and first call.

    python -m benchmarks.cold_start [--model resnet18] [--rounds 9]

Each round starts one process of each, in turn. Of the times and of the resident memory after the call the median is
printed, and the memory that the model may take: 1.3 times its weights and 40 MB.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import weft

WEFT = """
import numpy as np, weft
module, feeds = weft.load(FOLDER + "/model.weft"), dict(np.load(FOLDER + "/inputs.npz"))
module.run(None, feeds)
"""
PEER = """
import numpy as np, onnxruntime
feeds = dict(np.load(FOLDER + "/inputs.npz"))
session = onnxruntime.InferenceSession(FOLDER + "/model.onnx", providers=["CPUExecutionProvider"])
session.run(None, feeds)
"""
AROUND = """
import time, sys
FOLDER, begin, work = sys.argv[1], time.perf_counter(), time.process_time()
{}
taken = time.perf_counter() - begin, time.process_time() - work
resident = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS"))
print(*taken, int(resident) / 1024, flush=True)
import os; os._exit(0)
"""


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18", help="a built-in model of one set of shapes")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        graph = weft.models.make(given.model, 1)
        weft.compile(graph).save(Path(folder) / "model.weft")
        command = [sys.executable, "-m", "weft", "export", given.model, "--format", "onnx"]
        subprocess.run([*command, "-o", f"{folder}/model.onnx"], check=True, stdout=subprocess.DEVNULL)
        feeds = {v.name: np.zeros(v.tensor.static, v.tensor.numpy) for v in graph.inputs}
        np.savez(Path(folder) / "inputs.npz", **feeds)
        found: dict[str, list[list[float]]] = {"weft": [], "onnxruntime": []}
        for _ in range(given.rounds):
            for name, code in (("weft", WEFT), ("onnxruntime", PEER)):
                line = [sys.executable, "-c", AROUND.format(code), folder]
                done = subprocess.run(line, check=True, capture_output=True, text=True)
                found[name].append([float(word) for word in done.stdout.split()[-3:]])
    medians = {name: [statistics.median(column) for column in zip(*rows)] for name, rows in found.items()}
    for name, (wall, work, resident) in medians.items():
        print(f"{name:12} {wall:.3f} s, {work:.3f} s of processor time, {resident:.1f} MB resident")
    ratios = [ours / theirs for ours, theirs in zip(medians["weft"], medians["onnxruntime"])]
    weights = sum(array.nbytes for array in graph.constants.values()) / 2**20
    print(f"weft / onnxruntime: {', '.join(f'{one:.2f}' for one in ratios)}; load {os.getloadavg()[0]:.1f}")
    print(f"weights {weights:.0f} MB: at most {1.3 * weights + 40:.1f} MB resident")


if __name__ == "__main__":
    main()
