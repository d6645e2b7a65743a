"""What `weft.compile` and `weft.load` give: a model that is called with arrays.

    m = weft.compile("model.onnx")
    y = m(x)                              arrays in order, or by name: m(image=x); one output, or a tuple
    m(x, out=y)                           results into arrays of the caller
    ys = m.run(None, {"image": x})        as in ONNX Runtime, with m.get_inputs() and m.get_outputs()
    print(m.report())                     what runs where, and how much memory it takes

numpy arrays and anything that speaks DLPack go in; numpy comes out, or torch tensors where torch tensors went in.
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from weft.core import hooks, model
from weft.core.array_types import ArrayType, element_name
from weft.core.errors import ArgumentError, did_you_mean
from weft.runtime.model.fastcall import Fast, fitting
from weft.runtime.model.program import Port
from weft.runtime.model.runner import OpenSizes
from weft.runtime.threads import check_threads, get_threads


class HostWarning(UserWarning):
    """Nodes of a model that have no compiled kernel and run on the host."""


class SizeWarning(UserWarning):
    """A size that has one name and, in a call, two values."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output as ONNX Runtime describes it: a type such as "tensor(float)"; open sizes are their names."""

    name: str
    shape: list[int | str]
    """Empty for a scalar, and where not even the rank is known."""
    type: str


class Module:
    """A compiled model. Copies share its code and weights, which never change; pickle takes it as a module file.

    `executor` has the compiled forms: the compiler's `Executor`, or what a file holds (`stored.StoredModel`).
    """

    def __init__(self, executor: Any, threads: int | None = None) -> None:
        if not hasattr(executor, "specialization"):
            raise TypeError("a Module is what weft.compile(model) and weft.load(path) give")
        self._executor: Any = executor
        self.threads = threads
        self._warned = False
        self._fast: Fast | None = None
        self._fast_of: Any = None
        self.inputs: list[Port] = [port_of(value) for value in executor.signature.inputs]
        self.outputs: list[Port] = [port_of(value) for value in executor.signature.outputs]
        self._names = [port.name for port in self.inputs]
        self._has_out = "out" in self._names

    @property
    def threads(self) -> int | None:
        """The threads of its calls; None means `weft.get_threads()`."""
        return self._threads

    @threads.setter
    def threads(self, threads: int | None) -> None:
        self._threads = None if threads is None else check_threads(threads)

    @property
    def target(self) -> Any:
        """The machine it was compiled for."""
        return self._executor.target

    @property
    def graph(self) -> Any:
        """The model as it was loaded, a Graph."""
        return self._executor.graph

    @property
    def specializations(self) -> list[Any]:
        """The compiled forms so far, one for each set of shapes."""
        found: list[Any] = self._executor.specializations
        return found

    def get_inputs(self) -> list[NodeArg]:
        """The inputs as ONNX Runtime gives them."""
        return [_node_arg(value, port) for value, port in zip(self._executor.signature.inputs, self.inputs)]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs as ONNX Runtime gives them."""
        return [_node_arg(value, port) for value, port in zip(self._executor.signature.outputs, self.outputs)]

    def __call__(self, *arrays: Any, out: Any = None, **named: Any) -> Any:
        """The output for these inputs, in order or by name (also in one dict); a tuple where there are several.

        `out` is an array to write the output into, or a sequence with one for each output. (A model that has an input
        of the name "out" takes it here; `run` takes both.)
        """
        if out is not None:
            if self._has_out:
                named, out = {**named, "out": out}, None
            elif isinstance(out, np.ndarray):
                out = (out,)
        made, fast = None, self._fast  # which another thread may take away
        if not named and fast is not None and (out is None or type(out) in (list, tuple)):
            made = fast(arrays, self._threads or get_threads(), out)
        if made is None:
            made = self._run(None, self._feeds(arrays, named), out)
        return made[0] if len(made) == 1 else tuple(made)

    def _feeds(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        names = self._names
        if len(arrays) > len(names):
            raise ArgumentError(f"the model takes {len(names)} inputs ({', '.join(names)}), not {len(arrays)}")
        is_dict = len(arrays) == 1 and isinstance(arrays[0], Mapping)
        feeds = dict(arrays[0] if is_dict else zip(names, arrays))
        for name, array in named.items():
            if name in feeds:
                raise ArgumentError(f"the input {name!r} is given twice")
            feeds[name] = array
        return feeds

    def run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], out: Sequence[Any] | None = None
    ) -> list[Any]:
        """The named outputs (all of them, for None), for inputs by name.

        `out` gives a numpy array for each of these outputs, of its type and shape: the results are written there.
        """
        if not isinstance(feeds, dict):
            self._check_named(feeds)
        fast = self._fast  # which another thread may take away
        if fast is not None and output_names is None and len(feeds) == len(self._names):
            if out is None or type(out) in (list, tuple):
                try:
                    arrays = [feeds[name] for name in self._names]
                except KeyError:
                    arrays = []
                made = fast(arrays, self._threads or get_threads(), out)
                if made is not None:
                    return made
        return self._run(output_names, feeds, out)

    def _run(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], out: Sequence[Any] | None
    ) -> list[Any]:
        """The long way: everything is checked, converted where it can be, and explained where it cannot."""
        arrays, like_torch = self._bind(feeds)
        wanted = self._places(output_names)
        given = None if out is None else _checked_outputs([self.outputs[at] for at in wanted], out)
        found = self._executor.specialization(arrays)
        self._warn(found)
        self._remember(found, arrays)
        threads = self._threads or get_threads()
        if given is not None:
            places: list[Any] = [None] * len(self.outputs)
            for at, array in zip(wanted, given):
                places[at] = array
            made = found.runner.run(arrays, threads, places)
            return [_put(self.outputs[at].name, array, made[at]) for at, array in zip(wanted, given)]
        made = found.runner.run(arrays, threads)
        return [_as_torch(made[at]) if like_torch else made[at] for at in wanted]

    def _check_named(self, feeds: Any) -> None:
        if not isinstance(feeds, Mapping):
            raise ArgumentError(
                f"the inputs are given by name, {{{self._names[0] if self._names else 'x'!r}: array}}, not as a "
                f"{type(feeds).__name__}; a call of the module takes arrays in order"
            )

    def _places(self, output_names: Sequence[str] | None) -> list[int]:
        if output_names is None:
            return list(range(len(self.outputs)))
        if isinstance(output_names, str):
            raise ArgumentError(f"outputs are named in a list, such as [{output_names!r}]; None stands for all of them")
        places = {port.name: at for at, port in enumerate(self.outputs)}
        unknown = [name for name in output_names if name not in places]
        if unknown:
            raise ArgumentError(f"there are no outputs {unknown}; the outputs are {list(places)}")
        return [places[name] for name in output_names]

    def _remember(self, found: Any, arrays: Sequence[Any]) -> None:
        """Keeps the short way for inputs of these types, where their values decide nothing."""
        if self._fast_of is found or self._executor.binds_values:
            return
        executor, types = self._executor, [value.type for value in self._executor.signature.inputs]
        self._fast, self._fast_of = None, found
        if not all(isinstance(kind, ArrayType) for kind in types):
            return
        opened, own = executor.open_form, _own(found.runner, types, arrays)
        if opened is None or any(kind.dtype == "string" or kind.shape is None for kind in types):
            self._fast = own
        elif self._warned or not opened.host_nodes:
            self._fast = _by_sizes(executor, types, opened.runner.fast(types), own, arrays)

    def _bind(self, feeds: Mapping[str, Any]) -> tuple[list[Any], bool]:
        names = [port.name for port in self.inputs]
        missing = [name for name in names if name not in feeds]
        extra = [name for name in feeds if name not in names]
        if missing or extra:
            meant = did_you_mean(extra[0], missing) if extra else ""
            problems = [f"{what}: {', '.join(of)}" for what, of in (("missing", missing), ("unknown", extra)) if of]
            known = ", ".join(names) or "(none)"
            raise ArgumentError(f"the model takes the inputs {known}; {'; '.join(problems)}{meant}")
        like_torch = any(type(array).__module__.split(".")[0] == "torch" for array in feeds.values())
        arrays = [_as_array(feeds[v.name], v) for v in self._executor.signature.inputs]
        problem = _check_sizes(self._executor.signature.inputs, arrays)
        if problem is not None:
            warnings.warn(f"{problem}: from now on these are sizes of their own", SizeWarning, stacklevel=5)
            self._executor, self._fast, self._fast_of = self._executor.apart(), None, None
        self._executor.check_ranges(arrays)
        return arrays, like_torch

    def _warn(self, found: Any) -> None:
        if self._warned or not found.host_nodes:
            return
        self._warned = True
        lines = [f"{item.node.describe()}: {item.reason}" for item in found.host_nodes]
        shown = lines[:12] + ([f"and {len(lines) - 12} more"] if len(lines) > 12 else [])
        warnings.warn(
            f"{len(lines)} nodes have no kernel of their own and run on the host:\n  " + "\n  ".join(shown),
            HostWarning,
            stacklevel=4,
        )

    def report(self) -> str:
        """What runs where: kernels, host nodes with the reasons, memory."""
        return str(self._executor.report(self))

    def profile(self, *arrays: Any, threads: int | None = None, seconds: float = 1.0, **named: Any) -> Any:
        """The time of every kernel, what it computes and moves: a `Profile`, by the compiler.

        Inputs are given as in a call; those that are not given are random. (Inputs that have the name "threads" or
        "seconds" can be given in a dict.)
        """
        return self._executor.profile(self, self._feeds(arrays, named), threads, seconds)

    def save(self, path: str | Path) -> None:
        """Writes the compiled model to a file that `weft.load` reads (with numpy alone, where a linker is here)."""
        self._executor.save(self, path)

    def __copy__(self) -> Module:
        return type(self)(self._executor, self._threads)

    def __deepcopy__(self, memo: dict[int, Any]) -> Module:
        return self.__copy__()

    def __reduce__(self) -> tuple[Callable[[bytes, int | None], Module], tuple[bytes, int | None]]:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="weft-") as folder:
            path = Path(folder) / "pickled.weft"
            self._executor.save(self, path, link=False)
            return _unpickled, (path.read_bytes(), self._threads)

    def __repr__(self) -> str:
        from weft.core.html import printable

        inside = ", ".join(f"{port.name}: {port.dtype}{_sizes(port)}" for port in self.inputs)
        return printable(f"Module({self._executor.signature.name}({inside}) for {self._executor.target_name})")

    def _repr_html_(self) -> str:
        from weft.core.html import folded, preformatted, table, tag

        ports = [*(("input", port) for port in self.inputs), *(("output", port) for port in self.outputs)]
        return tag(
            "div",
            tag("b", f"Module {self._executor.signature.name}"),
            f" for {self._executor.target_name}, {self._threads or get_threads()} threads",
            table(["", "name", "type"], [(kind, port.name, f"{port.dtype}{_sizes(port)}") for kind, port in ports]),
            folded("what runs where", preformatted(self.report())),
        )


def _unpickled(content: bytes, threads: int | None) -> Module:
    """The module in the bytes of a module file."""
    import tempfile

    # A file that is mapped cannot be removed on some systems.
    with tempfile.TemporaryDirectory(prefix="weft-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "pickled.weft"
        path.write_bytes(content)
        made: Module = hooks.load(path, threads=threads)
        return made


def _sizes(port: Port) -> str:
    return "[...]" if port.shape is None else f"[{', '.join(map(str, port.shape))}]"


_ONNX_NAMES = {"float32": "float", "float64": "double"}


def _node_arg(value: Any, port: Port) -> NodeArg:
    return NodeArg(value.name, list(port.shape or ()), _onnx_type(value.type))


def _onnx_type(kind: Any) -> str:
    """A type as ONNX Runtime writes it."""
    if isinstance(kind, ArrayType):
        return f"tensor({_ONNX_NAMES.get(kind.dtype, kind.dtype.replace('_', ''))})"
    if hasattr(kind, "of"):
        return f"{'seq' if type(kind).__name__ == 'SequenceType' else 'optional'}({_onnx_type(kind.of)})"
    return "unknown"


def port_of(value: Any) -> Port:
    """An input or output as a module shows it."""
    kind = value.type
    if isinstance(kind, ArrayType):
        shape = None if kind.shape is None else tuple(d if isinstance(d, int) else str(d) for d in kind.shape)
        return Port(value.name, kind.dtype, shape)
    return Port(value.name, repr(kind), None)


def _own(runner: Any, types: Sequence[Any], arrays: Sequence[Any]) -> Fast | None:
    """The short way of a form for just the sizes of these arrays; None for the form for all sizes."""
    if isinstance(runner, OpenSizes):
        return None
    found: Fast | None = runner.fast([ArrayType(kind.dtype, array.shape) for kind, array in zip(types, arrays)])
    return found


def _shown(types: Sequence[Any]) -> list[int]:
    """Inputs that show all open sizes."""
    found, seen = [], set[str]()
    for at, kind in enumerate(types):
        names = {str(size) for size in kind.shape if not isinstance(size, int)}
        if names - seen:
            found.append(at)
            seen |= names
    return found


def _by_sizes(
    executor: Any, types: Sequence[Any], opened: Fast | None, first: Fast | None, given: Sequence[Any]
) -> Fast:
    """The short way of a model with open sizes, for arrays that fit: that of the form for just their sizes (`first` is
    that of the `given` arrays), or of the form for all sizes (`opened`), where no other may come.

    The ways of forms are found by the shapes that show all sizes: to ask the executor takes a tenth of a call of half a
    millisecond. They live as long as their forms, of which the executor drops those that nobody asks for.
    """
    fits, shown, count = fitting(tuple(types)), _shown(types), len(types)
    known: dict[Any, weakref.ref[Any]] = {}
    calls = itertools.count(1)

    def fast(arrays: Sequence[Any], threads: int, out: Sequence[Any] | None) -> list[Any] | None:
        if len(arrays) != count:
            return None
        shapes = tuple([arrays[at].shape if type(arrays[at]) is np.ndarray else None for at in shown])
        found = known.get(shapes)
        own = None if found is None else found()
        made = None if own is None else own(arrays, threads, out)
        if made is not None:
            if not next(calls) % model.CALLS_UNASKED:
                executor.specialization(arrays)
            return cast("list[Any]", made)
        if opened is not None:
            made = opened(arrays, threads, out)
        if made is not None or out is not None or not fits(arrays):
            return made
        executor.check_ranges(arrays)
        runner = executor.specialization(arrays).runner
        own = _own(runner, types, arrays)
        if own is None:
            return cast("list[Any]", runner.run(arrays, threads))
        if len(known) >= model.SHAPES_REMEMBERED:
            known.clear()
        known[shapes] = weakref.ref(own)
        return own(arrays, threads, None)

    if first is not None:
        known[tuple([given[at].shape for at in shown])] = weakref.ref(first)
    return fast


def _as_array(given: Any, value: Any) -> Any:
    """An input as the executor takes it: a contiguous numpy array of the right type."""
    kind = value.type
    if not isinstance(kind, ArrayType):
        return given
    is_own = type(given) is np.ndarray and given.dtype == kind.numpy and kind.dtype != "string"
    if is_own and given.shape == kind.shape and given.flags.carray:
        return given  # as nearly every one is
    if given is None or isinstance(given, Mapping):
        raise ArgumentError(f"input {value.name!r} is {kind!r}; a {type(given).__name__} was given for it")
    source = given
    if not isinstance(given, np.ndarray) and hasattr(given, "__dlpack__") and not np.isscalar(given):
        from weft.runtime.dlpack import import_array

        try:
            source = import_array(given)
        except ArgumentError as error:
            raise ArgumentError(f"input {value.name!r}: {error}") from None
    try:
        array = np.asarray(source)
    except (ValueError, TypeError, OverflowError) as error:
        raise ArgumentError(
            f"input {value.name!r} is {kind!r}; no array can be made of the {type(given).__name__} given: {error}"
        ) from None
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    array = of_type(array, given, kind, value.name)
    if kind.shape is not None:
        fits = len(kind.shape) == array.ndim and all(
            not isinstance(d, int) or d == n for d, n in zip(kind.shape, array.shape)
        )
        if not fits:
            raise ArgumentError(f"input {value.name!r} is {kind!r}; the array given has the shape {list(array.shape)}")
    if kind.dtype == "string":
        return array.astype(object)
    if not array.flags.c_contiguous or not array.flags.aligned:
        array = np.ascontiguousarray(array, kind.numpy).reshape(array.shape)
    return array


def of_type(array: Any, given: Any, kind: ArrayType, name: str) -> Any:
    """The array in the input's type: lists and Python's numbers are converted where they keep their values."""
    have = _name_of(array.dtype)
    if have == kind.dtype:
        return array
    is_torch = type(given).__module__.split(".")[0] == "torch"
    if hasattr(given, "dtype") and not isinstance(given, (bool, int, float)):
        way = f".to(torch.{kind.dtype})" if is_torch else f".astype({kind.dtype!r})"
        found = "object" if array.dtype == object else have
        raise ArgumentError(f"input {name!r} takes elements of {kind.dtype}, not {found}: convert it with {way}")
    rounds = kind.dtype.startswith(("float", "bfloat", "complex"))
    numbers = "biufc" if kind.dtype.startswith("complex") else "biuf"
    if array.dtype.kind in numbers and kind.dtype != "string":
        with np.errstate(all="ignore"):
            made = array.astype(kind.numpy)
            if rounds or np.array_equal(made.astype(object), array.astype(object)):  # Python compares to the last digit
                return made
    raise ArgumentError(f"input {name!r} takes elements of {kind.dtype}; the {have} given cannot be kept in them")


def _check_sizes(values: Sequence[Any], arrays: Sequence[Any]) -> str | None:
    """What is wrong where a named size has two values; models are exported with such names, and mean no harm."""
    seen: dict[Any, tuple[int, str]] = {}
    for value, array in zip(values, arrays):
        if not isinstance(value.type, ArrayType) or value.type.shape is None:
            continue
        for dim, size in zip(value.type.shape, array.shape):
            if not isinstance(dim, int):
                before = seen.setdefault(dim, (size, value.name))
                if before[0] != size:
                    return f"the size {dim} is {before[0]} in input {before[1]!r} and {size} in input {value.name!r}"
    return None


def _checked_outputs(ports: Sequence[Port], out: Any) -> list[Any]:
    """The caller's arrays for these outputs, as far as they can be judged before the run."""
    if not isinstance(out, (list, tuple)) or len(out) != len(ports):
        names = ", ".join(port.name for port in ports)
        raise ArgumentError(
            f"out takes one numpy array for each of {len(ports)} outputs ({names}), "
            f"not {len(out) if isinstance(out, (list, tuple)) else f'a {type(out).__name__}'}"
        )
    for at, (port, array) in enumerate(zip(ports, out)):
        if not isinstance(array, np.ndarray):
            raise ArgumentError(f"out for {port.name!r} must be a numpy array, not a {type(array).__name__}")
        if not array.flags.writeable:
            raise ArgumentError(f"out for {port.name!r} is read-only")
        sizes = array.shape if port.shape is None else port.shape
        fits = len(sizes) == array.ndim and all(not isinstance(d, int) or d == n for d, n in zip(sizes, array.shape))
        if not fits or _name_of(array.dtype) != port.dtype:
            raise ArgumentError(
                f"output {port.name!r} is {port.dtype}{list(sizes)}; "
                f"the array given for it is {_name_of(array.dtype)}{list(array.shape)}"
            )
        if any(np.shares_memory(array, other) for other in out[:at]):
            raise ArgumentError(f"out for {port.name!r} shares memory with the array of another output")
    return list(out)


def _name_of(dtype: Any) -> str:
    return element_name(dtype) or str(dtype)


def _put(name: str, array: Any, made: Any) -> Any:
    """A result in the caller's array: copied there, unless it was made there."""
    if made is not array:
        if not isinstance(made, np.ndarray) or made.shape != array.shape or made.dtype != array.dtype:
            have = f"{made.dtype}{list(made.shape)}" if isinstance(made, np.ndarray) else type(made).__name__
            raise ArgumentError(f"output {name!r} came out as {have}; the array given for it is {list(array.shape)}")
        np.copyto(array, made)
    return array


def _as_torch(array: Any) -> Any:
    import importlib

    torch = importlib.import_module("torch")
    if isinstance(array, np.ndarray) and array.dtype.isbuiltin != 1 and hasattr(torch, array.dtype.name):
        return torch.from_numpy(array.view(f"i{array.itemsize}")).view(getattr(torch, array.dtype.name))
    return torch.from_numpy(array) if isinstance(array, np.ndarray) and array.dtype != object else array
