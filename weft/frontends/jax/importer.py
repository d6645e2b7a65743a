"""A jaxpr to a Graph: one converter for each equation, all problems collected and raised together.

    b:f32[2,3] = max a 0.0:f32[]          ->     %b: float32[2, 3] = Max(%a, 0)

Calls (jit, custom_jvp_call, remat, …) are written where they stand. What follows from small constants alone is computed
at once, by JAX itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from weft.core.errors import InternalError, WeftError
from weft.core.install import FOLDER
from weft.frontends.emit import Unsupported
from weft.frontends.jax import control, elementwise, indexing, layers, movement, random, reductions, special, windows  # noqa: F401  (converters)
from weft.frontends.jax.control import CALLED, CALLS, CONTROL
from weft.frontends.jax.emit import JaxEmitter, type_of
from weft.frontends.jax.table import CONVERTERS
from weft.frontends.problems import Problems, converter_failed
from weft.graph.ir import Graph, Node, TensorType, Value

MOST_FOLDED = 4096
"""What follows from constants alone is computed at once up to so many elements; the passes fold the rest."""

_LIBRARIES = (os.path.dirname(jax.__file__).removesuffix("jax") + name + os.sep for name in ("jax", "keras", "flax"))
_NOT_THE_USERS = (*_LIBRARIES, str(FOLDER / "weft") + os.sep, "<")


def import_jaxpr(closed: Any, label: str, names: Sequence[str]) -> Graph:
    """The Graph of a closed jaxpr, with inputs of these names."""
    return _Importer(label).run(closed, names)


class _Importer:
    """Imports one jaxpr, with those inside it."""

    def __init__(self, label: str) -> None:
        self.c = JaxEmitter()
        self.c.inline = self.inline
        self.label = label
        self.problems = Problems(label)
        self.failed: set[Value] = set()
        self.arrays: dict[int, tuple[Any, Value]] = {}

    def run(self, closed: Any, names: Sequence[str]) -> Graph:
        inputs = []
        for var, name in zip(closed.jaxpr.invars, names):
            try:
                inputs.append(Value(self.c.fresh(name), type_of(var.aval)))
            except Unsupported as error:
                self.problems.lines.append(f"the input {name!r}: {error}")
                inputs.append(self._stand_in(var))
        outputs: list[Value] = []
        made = self.inline(closed, inputs)
        self.problems.raise_any()
        nodes = {value for node in self.c.nodes for value in node.outputs}
        for value in made:
            if value not in nodes or value in outputs:
                copy = Value(self.c.fresh(f"{value.name}_output"), value.type)
                self.c.nodes.append(Node("Identity", [value], [copy], name=self.c.fresh("output")))
                value = copy
            outputs.append(value)
        self.c.names.clear()
        return Graph(self.label, inputs, outputs, self.c.nodes, self.c.constants)

    def inline(self, closed: Any, operands: Sequence[Value]) -> list[Value]:
        """The results of a jaxpr for these operands."""
        jaxpr, constants = (closed.jaxpr, closed.consts) if isinstance(closed, ClosedJaxpr) else (closed, ())
        env: dict[Any, Value] = dict(zip(jaxpr.invars, operands))
        env.update((var, self._constant(array)) for var, array in zip(jaxpr.constvars, constants))

        def read(atom: Any) -> Value:
            return self._constant(atom.val, atom.aval) if isinstance(atom, Literal) else env[atom]

        for equation in jaxpr.eqns:
            made = self._equation(equation, [read(atom) for atom in equation.invars])
            env.update(zip(equation.outvars, made))
        return [read(atom) for atom in jaxpr.outvars]

    def _constant(self, array: Any, aval: Any = None) -> Value:
        """A constant over the memory of an array of JAX's."""
        if isinstance(array, jax.Array) and jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
            array = jax.random.key_data(array)
        found = self.arrays.get(id(array))
        if found is None:
            made = np.asarray(array) if aval is None else np.asarray(array, np.dtype(aval.dtype))
            if made.dtype.kind == "c":
                self.problems.lines.append("a constant of complex numbers")
                made = made.real
            value = self.c.constant(made, name="" if made.size <= 64 else "constant")
            if aval is not None:
                return value
            found = self.arrays[id(array)] = (array, value)
        return found[1]

    # -------------------------------------------------------------------------------------------------- equations

    def _equation(self, equation: Any, operands: list[Value]) -> list[Value]:
        c, name, given = self.c, equation.primitive.name, equation.params
        inner = next((given[key] for key in CALLED if given.get(key) is not None), None) if name in CALLS else None
        kept = (c.label, c.origin, c.dtype, c.shape, c.avals, c.results, c.primitive)
        c.label, c.origin = name, user_line(equation) or c.origin
        try:
            return self._converted(equation, name, operands) if inner is None else self.inline(inner, operands)
        except WeftError as error:
            if isinstance(error, _Unknown):
                self.problems.is_unknown(name, c.origin, name, "jax")
            else:
                said = str(error) if isinstance(error, Unsupported) else f"{type(error).__name__}: {error}"
                self.problems.add(name, said, c.origin)
            return [self._stand_in(var) for var in equation.outvars]
        except InternalError:  # of an equation inside
            raise
        except Exception as error:
            raise converter_failed(name, c.origin, error) from error
        finally:
            c.label, c.origin, c.dtype, c.shape, c.avals, c.results, c.primitive = kept

    def _converted(self, equation: Any, name: str, operands: list[Value]) -> list[Value]:
        c = self.c
        c.primitive = equation.primitive
        c.avals = [atom.aval for atom in equation.invars]
        c.results = [var.aval for var in equation.outvars]
        wanted = [type_of(aval) for aval in c.results]
        for aval in c.avals:
            type_of(aval)
        c.dtype, c.shape = (wanted[0].dtype, wanted[0].static) if wanted else ("", ())
        converter = CONVERTERS.get(name)
        if any(one in self.failed for one in operands) and converter is not None:
            return [self._stand_in(var) for var in equation.outvars]
        if converter is None:
            users = c.of_users(name, "jax", operands, wanted, equation.params)
            if users is None:
                raise _Unknown(name)
            return users
        if name not in CONTROL and sum(int(np.prod(one.static)) for one in wanted) <= MOST_FOLDED:
            arrays = [c.known(one) for one in operands]
            if all(one is not None and one.size <= MOST_FOLDED for one in arrays) and not _has_keys(c):
                found = equation.primitive.bind(*arrays, **equation.params)
                return [c.constant(np.asarray(one)) for one in (found if isinstance(found, (list, tuple)) else [found])]
        made = converter(c, *operands, **equation.params)
        results = list(made) if isinstance(made, (list, tuple)) else [made]
        return [self._settled(one, kind) for one, kind in zip(results, wanted, strict=True)]

    def _settled(self, made: Value, wanted: TensorType) -> Value:
        """A result as JAX describes it."""
        made = self.c.cast(made, wanted.dtype)
        if made.tensor.shape != wanted.shape:
            if not made.tensor.is_static and made not in self.c.constants:  # a loop's, which knows no numbers of turns
                made.type = wanted
                return made
            raise Unsupported(f"its result would be {made.tensor!r}, and JAX says {list(wanted.static)}")
        return made

    def _stand_in(self, var: Any) -> Value:
        """What an equation that failed would have made, so that its readers are not blamed."""
        try:
            kind = type_of(var.aval)
        except Unsupported:
            kind = TensorType("float32", tuple(var.aval.shape))
        value = Value("failed", kind)
        self.failed.add(value)
        return value


class _Unknown(WeftError):
    """No converter has the name."""


def _has_keys(c: JaxEmitter) -> bool:
    return any(jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key) for aval in (*c.avals, *c.results))


def user_line(equation: Any) -> str:
    """The innermost line of an equation's traceback that is the user's, and its layer or scope: "dense at a.py:31"."""
    traceback, scope = equation.source_info.traceback, str(equation.source_info.name_stack)
    for frame in traceback.frames if traceback is not None else ():
        if not frame.file_name.startswith(_NOT_THE_USERS):
            near = os.path.relpath(frame.file_name)
            line = f"{frame.file_name if near.startswith('..') else near}:{frame.line_num}"
            return f"{scope} at {line}" if scope else line
    return scope
