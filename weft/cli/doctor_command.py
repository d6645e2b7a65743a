"""weft doctor: what was found here, what is missing, and the command that mends it."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

from weft.cli.screen import Screen, seconds
from weft.compiler.cache import models as cache
from weft.core.errors import TargetError, WeftError
from weft.core.install import DISTRIBUTION, FOLDER, MEND, clashes, hint
from weft.core.knobs import knobs, unknown_variables
from weft.core.version import VERSION
from weft.runtime.cache_folder import cache_problem
from weft.runtime.threads import available_cores
from weft.targets.registry import find_target, local_devices, look_again

EXTRAS = {
    "onnx": ("onnx", "reading ONNX models"),
    "torch": ("torch", "compiling PyTorch models"),
    "jax": ("jax", "compiling functions of JAX's"),
    "keras": ("keras", "compiling Keras models"),
    "cuda": ("nvidia-cuda-nvrtc", "compiling for GPUs of NVIDIA"),
    "opencl": ("pyopencl", "OpenCL devices"),
    "link": ("ziglang", "linking shared libraries without a C compiler"),
    "tune": ("xgboost", "a cost model that learns while schedules are measured"),
    "pool": ("distributed", "tuning on a pool of machines"),
}
"""The extras of Weft: the distribution that each brings, and what it is for."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `state` is "ok", "missing" (an extra that is not there) or "bad"."""

    what: str
    state: str
    detail: str
    mend: str = ""


def add(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    text = "measure what a core of this machine does in a cycle (seconds), and choose schedules by that from now on"
    parser.add_argument("--calibrate", action="store_true", help=text)


def run(given: argparse.Namespace, screen: Screen) -> int:
    """The command; 1 where something is bad."""
    if given.calibrate:
        with screen.working("measuring a core"):
            _calibrate(screen)
    with screen.working("looking around"):
        found = [finding for check in CHECKS for finding in guarded(check)]
    bad = [one for one in found if one.state == "bad"]
    if screen.as_json:
        screen.figures({"healthy": not bad, "findings": [asdict(one) for one in found]})
        return 1 if bad else 0
    marks = {"ok": "✓", "missing": "–", "bad": "✗"}
    screen.table(["", "", "found", "what mends it"], [[marks[o.state], o.what, o.detail, o.mend] for o in found])
    screen.line()
    screen.line("something is wrong: see the lines with ✗" if bad else "Weft is ready; – marks what it can do without")
    return 1 if bad else 0


def _calibrate(screen: Screen) -> None:
    target = find_target("native")
    if target.spec.calibrate is None:
        raise TargetError(f"the target {target.name} has no facts that could be measured")
    found = target.spec.calibrate(target)
    look_again()
    if not screen.as_json:
        screen.table(["of one core", "measured"], [[name.replace("_", " "), f"{n:g}"] for name, n in found.items()])
        screen.line()


def guarded(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """What a check finds; a check that fails is a finding itself: this command must not."""
    try:
        yield from list(check())
    except (WeftError, ImportError, OSError, RuntimeError, ValueError) as problem:
        yield Finding(check.__name__.strip("_"), "bad", f"{type(problem).__name__}: {problem}")


# ---------------------------------------------------------------------------------------------------------- checks


def _python() -> Iterator[Finding]:
    state = "ok" if sys.version_info >= (3, 10) else "bad"
    mend = "" if state == "ok" else "install Python 3.10 or newer"
    yield Finding("Python", state, f"{platform.python_version()} on {platform.system()} {platform.machine()}", mend)


def _weft() -> Iterator[Finding]:
    installed = version(DISTRIBUTION)
    by = f"installed as {DISTRIBUTION} {installed}" if installed else f"found by its path, not as {DISTRIBUTION}"
    core = "Python" if str(importlib.import_module("weft.expr.classes").__file__).endswith(".py") else "native code"
    yield Finding("weft", "ok", f"{VERSION} in {FOLDER} ({by}; its core runs as {core})")
    for one in clashes():
        yield Finding("weft's name", "missing" if one.is_ours else "bad", str(one), MEND)


def _settings() -> Iterator[Finding]:
    for state in knobs.describe():
        if state.source != "default":
            yield Finding("setting", "ok", f"{state.variable}={state.value} ({state.source}): {state.meaning}")
    for name, text in unknown_variables().items():
        yield Finding("setting", "missing", text, f"unset {name}")


def _packages() -> Iterator[Finding]:
    for package in ("numpy", "ml_dtypes", "llvmlite", "rich", "platformdirs"):
        found = version(package)
        state, mend = ("ok", "") if found else ("bad", f"pip install {package}")
        yield Finding(package, state, found or "not installed", mend)
    llvm = importlib.import_module("llvmlite.binding")
    yield Finding("LLVM", "ok", ".".join(map(str, llvm.llvm_version_info)))


def _processor() -> Iterator[Finding]:
    target = find_target("native")
    yield Finding("processor", "ok", f"{target.cpu} ({target.triple}), vectors of {8 * target.vector_bytes} bits")
    for check in target.spec.examine(target):
        yield Finding(check.what, "ok" if check.is_right else "missing", check.detail, check.mend)


def _cores() -> Iterator[Finding]:
    total, usable = os.cpu_count() or 1, available_cores()
    detail = f"{usable} of {total}" + ("" if usable == total else " (affinity or cgroup quota)")
    yield Finding("cores", "ok", detail)
    chosen = knobs.num_threads
    yield Finding("threads", "ok", f"{chosen} (WEFT_NUM_THREADS)" if chosen else f"{usable}, as many as cores")


def _kept_models() -> str:
    if not knobs.cache:
        return "compiled models are not kept: WEFT_CACHE is off"
    count, size = cache.usage()
    return f"{count} compiled models, {size >> 20} of at most {knobs.cache_megabytes} MB"


def _cache() -> Iterator[Finding]:
    folder = Path(knobs.cache_dir)
    parent = next((one for one in (folder, *folder.parents) if one.exists()), folder)
    problem = cache_problem()
    if problem is not None:
        yield Finding("cache folder", "missing", f"not used: {problem}", "WEFT_CACHE_DIR=another folder")
    elif os.access(parent, os.W_OK):
        yield Finding("cache folder", "ok", f"{folder} ({_kept_models()})")
    else:
        yield Finding("cache folder", "missing", f"{folder} cannot be written", "WEFT_CACHE_DIR=another folder")


def _self_test() -> Iterator[Finding]:
    import time

    import weft
    from weft import te

    a = te.placeholder((64,), name="a")
    b = te.compute((64,), lambda i: a[i] * 2.0 + 1.0, name="b")
    start = time.perf_counter()
    function = weft.build(te.create_schedule(b.op), [a, b], target="native")
    x, y = np.arange(64, dtype="float32"), np.empty(64, "float32")
    function(x, y)
    taken = time.perf_counter() - start
    good = bool(np.array_equal(y, x * 2 + 1))
    detail = f"a kernel was compiled and run in {seconds(taken)}" if good else "a kernel gave a wrong result"
    yield Finding("self-test", "ok" if good else "bad", detail, "" if good else "please report this as a bug")


def _linker() -> Iterator[Finding]:
    if importlib.util.find_spec("ziglang") is not None:
        yield Finding("linker", "ok", f"LLD from ziglang {version('ziglang')}")
        return
    found = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if found:
        yield Finding("linker", "ok", found)
    else:
        yield Finding("linker", "missing", "none; exporting shared libraries needs one", hint("link"))


def _extras() -> Iterator[Finding]:
    wanted = {extra: (package, purpose, hint(extra)) for extra, (package, purpose) in EXTRAS.items()}
    against = "weft compare, and weft bench --against ort"
    wanted["onnxruntime"] = ("onnxruntime", against, "pip install onnxruntime")  # a package of its own, no extra
    for name, (package, purpose, mend) in wanted.items():
        found = version(package) or version(f"{package}-cpu")  # XGBoost has a distribution without its GPU part
        if found:
            yield Finding(name, "ok", f"{package} {found}: {purpose}")
        else:
            yield Finding(name, "missing", f"{package} is not installed: {purpose}", mend)


def _torch_compile() -> Iterator[Finding]:
    if version("torch") is None:
        return
    found = [one for one in metadata.entry_points(group="torch_dynamo_backends") if one.name == "weft"]
    if found:
        yield Finding("torch.compile", "ok", f'backend="weft" ({found[0].value})')
    else:
        detail = 'this installation does not tell PyTorch of backend="weft"'
        yield Finding("torch.compile", "missing", detail, f"{hint('torch')}, or import weft.torch_backend")


def _devices() -> Iterator[Finding]:
    found = local_devices()
    for device in found:
        yield Finding("device", "ok", f"{device.target.name}: {device.name}")
    if not found:
        mend = "a driver of NVIDIA's, or pip install 'pyopencl[pocl]' for OpenCL on the processor"
        yield Finding("devices", "missing", "none besides the processor", mend)


CHECKS = (
    _python,
    _weft,
    _packages,
    _processor,
    _cores,
    _settings,
    _cache,
    _self_test,
    _linker,
    _extras,
    _torch_compile,
    _devices,
)


def version(package: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
