"""A model as C99 that needs no system: no heap, no threads, no files; the caller gives the memory.

NAME.c            kernels, and weft_NAME_run, which calls them in order
NAME_weights.c    the weights, as little-endian words; NAME.bin where they are beside
NAME.h, main.c    how it is called, and an example
"""

from __future__ import annotations

from collections.abc import Sequence
from string import Template

import numpy as np

from weft.codegen.c.generate import c_symbol, generate_bare
from weft.compiler.export.api import ERRORS, weights_symbol
from weft.compiler.export.header import example_text, header_text
from weft.compiler.export.plan import ExportError, LibraryPlan, Tensor, comment
from weft.runtime.model.module_file import padded

WORDS_A_LINE = 6


def c_sources(plan: LibraryPlan, beside: bool) -> dict[str, str]:
    """The files by name."""
    if not all(step.calls for step in plan.steps):
        raise ExportError(f"{plan.title} is read from a module file: C is made from the model itself")
    if plan.target.name != "c":
        raise ExportError(f"C is written for no certain machine: the target is c, not {plan.target.name}")
    kernels = {kernel.symbol: kernel.scheduled for kernel in plan.form.lowered.kernels}
    pieces: dict[str, None] = {}
    scratch = 0
    for func in kernels.values():
        found, wanted = generate_bare(plan.target.lower(func))
        pieces.update(dict.fromkeys(found))
        scratch = max(scratch, wanted)
    arena = padded(plan.arena_bytes)
    symbols = {symbol: c_symbol(func.name) for symbol, func in kernels.items()}
    name = plan.name
    source = [
        f'#include "{name}.h"\n\n#include <stddef.h>\n#include <string.h>',
        *pieces,
        _ORDER,
        "" if beside else f"extern const uint64_t {weights_symbol(plan)}[];",
        _table(plan.inputs, f"weft_{name}_input", "given"),
        _table(plan.outputs, f"weft_{name}_output", "made"),
        _errors(plan),
        _run(plan, symbols, arena, beside),
    ]
    texts = {
        f"{name}.c": "\n\n".join(filter(None, source)) + "\n",
        f"{name}.h": header_text(plan, beside, arena + scratch + 64),
        "main.c": example_text(plan, beside, plain=True),
    }
    return texts if beside else {**texts, f"{name}_weights.c": _weights(plan)}


_ORDER = """#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the weights are little-endian"
#endif"""


def _weights(plan: LibraryPlan) -> str:
    raw = b"".join(
        np.ascontiguousarray(array).tobytes() + bytes(padded(array.nbytes) - array.nbytes) for array in plan.arrays
    )
    words = np.frombuffer(raw or bytes(8), "<u8").astype(">u8").tobytes().hex()
    listed = [f"0x{words[at : at + 16]}" for at in range(0, len(words), 16)]
    rows = [", ".join(listed[at : at + WORDS_A_LINE]) for at in range(0, len(listed), WORDS_A_LINE)]
    symbol = f"const uint64_t {weights_symbol(plan)}[{len(listed)}]"
    return f"#include <stdint.h>\n\nextern {symbol};\n\n{symbol} = {{\n" + ",\n".join(rows) + "\n};\n"


def _quoted(text: str) -> str:
    """A C string, in characters that every compiler takes."""
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in text.encode())
    return f'"{"".join(plain)}"'


def _table(tensors: Sequence[Tensor], function: str, name: str) -> str:
    rows, shapes = [], []
    for at, one in enumerate(tensors):
        sizes = ", ".join(map(str, one.shape)) or "1"
        shapes.append(f"static const int64_t {name}_{at}_shape[] = {{{sizes}}};")
        kind = f"{one.bytes}, {len(one.shape)}, {name}_{at}_shape"
        rows.append(f"    {{{_quoted(one.name)}, {_quoted(one.dtype)}, {kind}}},")
    head = f"const weft_tensor *{function}(int32_t number) {{"
    if not rows:
        return f"{head} (void)number; return NULL; }}"
    table = [f"static const weft_tensor {name}_tensors[] = {{", *rows, "};"]
    test = f"return number >= 0 && number < {len(rows)} ? &{name}_tensors[number] : NULL;"
    return "\n".join([*shapes, *table, f"{head} {test} }}"])


def _errors(plan: LibraryPlan) -> str:
    cases = [f"  case {code}: return {_quoted(text)};" for code, text in ERRORS.items() if code not in (3, 4)]
    head = f"const char *weft_{plan.name}_error(int32_t code) {{\n  switch (code) {{"
    return "\n".join([head, *cases, '  default: return "an unknown error";', "  }", "}"])


_RUN = """int32_t weft_${name}_run(void *arena, ${parameter}const void *const *inputs, void *const *outputs) {
  unsigned char *const memory = (unsigned char *)arena;
  void *args[$longest];
  int32_t code = 0, i;
  if (arena == NULL || $test || (uintptr_t)arena % 8 != 0) return 2;
  for (i = 0; i < $inputs; ++i)
    if (inputs[i] == NULL) return 2;
  for (i = 0; i < $outputs; ++i)
    if (outputs[i] == NULL) return 2;
$steps
  return code;
}"""


def _run(plan: LibraryPlan, symbols: dict[str, str], arena: int, beside: bool) -> str:
    """The function that runs the model: argument checks, the kernels, and outputs that are copies."""
    offsets, base = plan.offsets, "weights" if beside else weights_symbol(plan)
    places = {
        "arena": lambda number, offset: f"memory + {offset}",
        "array": lambda number, offset: f"(void *)((const unsigned char *){base} + {offsets[number] + offset})",
        "input": lambda number, offset: f"(void *)((const unsigned char *)inputs[{number}] + {offset})",
        "output": lambda number, offset: f"(unsigned char *)outputs[{number}] + {offset}",
    }
    lines: list[str] = []
    for step, (_, bases) in zip(plan.steps, plan.calls):
        for call, label in zip(step.calls, step.kernels):
            lines.append(f"  /* {comment(label)} */")
            for at, (number, offset) in enumerate(call.arguments):
                kind, index = bases[number]
                lines.append(f"  args[{at}] = {places[kind](index, offset)};")
            test = "if (args[0] != args[1]) " if call.copies else ""
            lines.append(f"  {test}code = {symbols[call.symbol]}(args, memory + {arena});")
            lines.append("  if (code != 0) return code;")
    for copy in plan.copies:
        source = places[copy.kind](copy.number, 0)
        lines.append(f"  memcpy(outputs[{copy.output}], {source}, {plan.outputs[copy.output].bytes});")
    longest = max((len(call.arguments) for step in plan.steps for call in step.calls), default=1)
    if not plan.steps:
        lines.insert(0, "  (void)args; (void)memory;")
    null = "inputs == NULL || outputs == NULL"
    null += " || weights == NULL || (uintptr_t)weights % 8 != 0" if beside else ""
    return Template(_RUN).substitute(
        name=plan.name, parameter="const void *weights, " if beside else "", longest=longest, test=null,
        inputs=len(plan.inputs), outputs=len(plan.outputs), steps="\n".join(lines),
    )  # fmt: skip
