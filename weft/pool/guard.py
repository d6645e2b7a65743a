"""What a pool's processes take from each other: Dask's own records, bytes, and the names of the functions in `jobs`.

Dask sends functions and some of its messages as pickles, and a pickle may call whatever Python has. TLS keeps strangers
out; this keeps a member of the pool from running anything but our jobs. Pickles are read here by an Unpickler that
knows a list of names (those of Dask's records, which hold data) and refuses all others before anything is called.
"""

from __future__ import annotations

import io
import logging
import pickle
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger("weft.pool")

ALLOWED: Mapping[str, frozenset[str]] = {
    "weft.pool.jobs": frozenset({"build", "kernel", "measure", "bench", "collect"}),
    "builtins": frozenset({"bytes", "bytearray", "str", "int", "float", "list", "tuple", "dict", "set", "frozenset"}),
    "dask._expr": frozenset({"Expr._reconstruct", "LLGExpr"}),
    "dask._task_spec": frozenset({"Task", "Alias", "DataNode", "TaskRef", "List", "Tuple", "Dict", "_identity_cast"}),
    "distributed.scheduler": frozenset({"KilledWorker", "NoValidWorkerError"}),
}
"""Modules, and the names that may be taken from them."""

SETTINGS = {
    "distributed.scheduler.allowed-failures": 30,  # a task whose worker is killed is not to blame
    "distributed.scheduler.worker-ttl": "30s",
    "distributed.worker.profile.enabled": False,
    "distributed.comm.timeouts.connect": "10s",
    "distributed.comm.retry.count": 2,
    "distributed.admin.large-graph-warning-threshold": "100MB",
}
"""Dask's, in every process of a pool."""


class Refused(pickle.UnpicklingError):
    """A pickle that names something that no pool needs."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name not in ALLOWED.get(module, ()):
            logger.warning("refused: a message that names %s.%s", module, name)
            raise Refused(f"a pool takes bytes and its own jobs, not {module}.{name}")
        return super().find_class(module, name)


class _Pickle:
    """The module `pickle`, with our way to read."""

    def __getattr__(self, name: str) -> Any:
        return getattr(pickle, name)

    @staticmethod
    def loads(data: Any, *, buffers: Any = None) -> Any:
        return _Reader(io.BytesIO(data), buffers=buffers).load()


def guard() -> None:
    """Makes this process read pickles by the list, and sets what a pool wants of Dask."""
    import dask
    from distributed.protocol import pickle as reading

    dask.config.set(SETTINGS)
    reading.pickle = _Pickle()
    logging.getLogger("distributed").setLevel(logging.ERROR)
