"""Writes TFLite models of one subgraph: a flatbuffer without the package of that name.

model(tensors, operators, inputs, outputs)
    tensors    [(shape, "int8", data or None, scale or None, zero)]
    operators  [("CONV_2D", inputs, outputs, {slot: ("b", 1)} or None)]
"""

import struct

import numpy as np

from weft.frontends.tflite.schema import OPERATORS, TYPES


class Writer:
    """Puts parents before children, so that all references point forwards."""

    def __init__(self):
        self.data = bytearray(8)
        self.data[4:8] = b"TFL3"
        self.later = []

    def align(self, size):
        self.data.extend(b"\0" * (-len(self.data) % size))

    def refer(self, place, thing):
        self.later.append((place, thing))

    def finish(self, table):
        self.refer(0, table)
        while self.later:
            place, thing = self.later.pop(0)
            at = self.put(thing)
            struct.pack_into("<I", self.data, place, at - place)
        return bytes(self.data)

    def put(self, thing):
        """A dict is a table, {slot: (letter, number) or what is referred to}; lists of tables; arrays; text."""
        if isinstance(thing, dict):
            return self.table(thing)
        if isinstance(thing, str):
            thing = np.frombuffer(thing.encode() + b"\0", "u1")
            return self.vector(thing, len(thing) - 1)
        if isinstance(thing, np.ndarray):
            return self.vector(thing, thing.size)
        self.align(4)
        at = len(self.data)
        self.data.extend(struct.pack("<I", len(thing)) + b"\0" * (4 * len(thing)))
        for turn, one in enumerate(thing):
            self.refer(at + 4 + 4 * turn, one)
        return at

    def vector(self, array, count):
        self.data.extend(b"\0" * ((-len(self.data) - 4) % 16))
        at = len(self.data)
        self.data.extend(struct.pack("<I", count) + array.tobytes())
        return at

    def table(self, fields):
        slots = max(fields, default=-1) + 1
        places, offset = {}, 4
        for slot, what in fields.items():
            size = struct.calcsize(what[0]) if isinstance(what, tuple) else 4
            offset += -offset % size
            places[slot] = offset
            offset += size
        self.align(8)
        start = len(self.data)
        table = [4 + 2 * slots, offset, *(places.get(slot, 0) for slot in range(slots))]
        self.data.extend(struct.pack(f"<{len(table)}H", *table))
        self.align(8)
        at = len(self.data)
        self.data.extend(b"\0" * offset)
        struct.pack_into("<i", self.data, at, at - start)
        for slot, what in fields.items():
            if isinstance(what, tuple):
                struct.pack_into(f"<{what[0]}", self.data, at + places[slot], what[1])
            else:
                self.refer(at + places[slot], what)
        return at


def numbers(values):
    return np.array(values, "<i4")


def model(tensors, operators, inputs, outputs, union):
    """The bytes of a model."""
    buffers, tables = [{}], []
    for at, (shape, dtype, data, scale, zero) in enumerate(tensors):
        table = {0: numbers(shape), 1: ("b", TYPES.index(dtype)), 2: ("I", 0), 3: f"t{at}"}
        if data is not None:
            table[2] = ("I", len(buffers))
            buffers.append({0: np.frombuffer(np.ascontiguousarray(data).tobytes(), "u1")})
        if scale is not None:
            scales = np.atleast_1d(np.array(scale, "<f4"))
            zeros = np.broadcast_to(np.array(zero, "<i8"), scales.shape)
            axis = 3 if len(shape) == 4 and scales.size == shape[3] and shape[0] == 1 else 0
            table[4] = {2: scales, 3: np.ascontiguousarray(zeros), 6: ("i", axis)}
        tables.append(table)
    codes = sorted({name for name, *_ in operators})
    made = []
    for name, takes, gives, options in operators:
        one = {0: ("I", codes.index(name)), 1: numbers(takes), 2: numbers(gives)}
        if options:
            one[3] = ("B", union[name])
            one[4] = options
        made.append(one)
    found = [{0: ("b", min(OPERATORS.index(c), 127)), 2: ("i", 1), 3: ("i", OPERATORS.index(c))} for c in codes]
    graph = {0: tables, 1: numbers(inputs), 2: numbers(outputs), 3: made, 4: "main"}
    return Writer().finish({0: ("I", 3), 1: found, 2: [graph], 3: "weft", 4: buffers})
