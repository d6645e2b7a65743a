"""One job on a device of this machine, in a process of its own: JSON on stdin, an Outcome on stdout."""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

from weft.core.errors import RuntimeFault, WeftError
from weft.loop.parser import parse_func
from weft.pool.kinds import make_arrays, packing_of
from weft.targets.base import Target
from weft.targets.registry import find_target
from weft.tuner.bench import DeviceKernel, difference
from weft.tuner.records import Outcome, Status


class SentKernel(DeviceKernel):
    """A kernel whose program came as text."""

    def __init__(self, text: str, target: Target, parameters: Any, inputs: int, arrays: Any) -> None:
        self.load(parse_func(text), target, tuple(map(packing_of, parameters)), inputs)
        self.bind(arrays)


def outcome_of(job: dict[str, Any]) -> Outcome:
    """What comes of a job."""
    target, arrays = find_target(job["target"]["text"]), make_arrays(json.dumps(job["arrays"]))
    try:
        kernels = [
            SentKernel(text, target, parameters, job["inputs"], arrays)
            for text, parameters in zip(job["programs"], job["parameters"])
        ]
    except WeftError as error:
        return Outcome(Status.BUILD_ERROR, detail=str(error).splitlines()[0][:300])
    try:
        for kernel in kernels:
            kernel.run()
    except RuntimeFault as error:
        return Outcome(Status.FAULT, detail=str(error)[:300])
    wrong = difference(kernels[0].results, kernels[-1].results)
    if wrong:
        return Outcome(Status.WRONG, detail=wrong)
    timers = [kernel.timer() for kernel in kernels]
    best = [min(sum(timer()) for _ in range(3)) for timer in timers]
    return Outcome(Status.OK, best[-1], best[0])


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[1]), int(sys.argv[1]) + 5))  # a busy machine is no hang
    sys.stdout.write(outcome_of(json.loads(sys.stdin.buffer.read())).to_json() + "\n")
