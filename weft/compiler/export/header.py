"""The C header of a library, and an example that builds and runs."""

from __future__ import annotations

from collections.abc import Sequence
from string import Template

from weft.compiler.export.plan import LibraryPlan, Tensor, comment
from weft.core.version import VERSION
from weft.runtime.model.module_file import padded

_C_TYPES = {
    "float32": "float", "float64": "double", "float16": "uint16_t", "bfloat16": "uint16_t", "bool": "uint8_t",
    "float8_e4m3fn": "uint8_t", "float8_e5m2": "uint8_t",
    "int8": "int8_t", "int16": "int16_t", "int32": "int32_t", "int64": "int64_t",
    "uint8": "uint8_t", "uint16": "uint16_t", "uint32": "uint32_t", "uint64": "uint64_t",
}  # fmt: skip
"""Element types of C that hold the elements; 16-bit floats are given by their bits."""


def header_text(plan: LibraryPlan, beside: bool = False, arena: int | None = None) -> str:
    """The header; that of plain C, which takes its memory from the caller, where it needs `arena` bytes."""
    given, said = ("const void *weights, ", f"\n   weights: the bytes of {plan.name}.bin, at a multiple of 64 bytes.")
    given, said = (given, said) if beside else ("", "")
    functions = _LIBRARY if arena is None else _PLAIN
    link = f"Link with -l{plan.name}; neither" if arena is None else f"Compile {plan.name}*.c with it; neither"
    words = {"name": plan.name, "upper": plan.name.upper(), "weights": given, "said": said, "arena": arena}
    return Template(_HEADER).substitute(
        words,
        title=plan.title,
        version=VERSION,
        cpu=plan.target.cpu if arena is None else "any machine with a C compiler",
        link=link,
        inputs=len(plan.inputs),
        outputs=len(plan.outputs),
        input_lines=_lines(plan.inputs),
        output_lines=_lines(plan.outputs),
        functions=Template(functions).substitute(words),
    )


def example_text(plan: LibraryPlan, beside: bool = False, plain: bool = False) -> str:
    """The example, main.c."""
    name, upper = plan.name, plan.name.upper()
    size = sum(padded(array.nbytes) for array in plan.arrays) or padded(0)
    place = f"    unsigned char *held = room_for({size} + 64), *weights = held + (64 - (uintptr_t)held % 64);"
    before = [place, f'    read_file("{name}.bin", weights, {size});'] if beside else []
    given, after = ("weights, ", ["    free(held);"]) if beside else ("", [])
    if plain:
        build = f"cc -std=c99 main.c {name}*.c -lm -o main && ./main"
        before.append("    int32_t code;")
        instance = "arena"
    else:
        build = f"cc main.c -L. -l{name} -o main && LD_LIBRARY_PATH=. ./main"
        before += [f"    weft_{name} *model;", f"    int32_t code = weft_{name}_create(0, {given}&model);"]
        before.append(f'    if (code != 0) fail("create", weft_{name}_error(code));')
        after.insert(0, f"    weft_{name}_destroy(model);")
        instance, given = "model", ""
    arena = f"static uint64_t arena[(WEFT_{upper}_ARENA_BYTES + 7) / 8];\n\n" if plain else ""
    words = {"before": "\n".join(before), "after": "\n".join([*after, ""]) if after else "", "arena": arena}
    return Template(_EXAMPLE).substitute(words, name=name, upper=upper, build=build, given=f"{instance}, {given}")


def c_type(dtype: str) -> str:
    """The C type that holds an element; bytes where C has none."""
    return _C_TYPES.get(dtype, "uint8_t")


def _lines(tensors: Sequence[Tensor]) -> str:
    rows = [
        f"     {at}  {c_type(one.dtype)} {comment(one.name)}{''.join(f'[{size}]' for size in one.shape)}"
        f"   ({one.dtype}, {one.bytes} bytes)"
        for at, one in enumerate(tensors)
    ]
    return "\n".join(rows) or "     none"


_HEADER = """\
/* $title, compiled by Weft $version for $cpu. $link Python nor Weft is needed.

   inputs
$input_lines
   outputs
$output_lines
*/
#ifndef WEFT_${upper}_H
#define WEFT_${upper}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef WEFT_TENSOR
#define WEFT_TENSOR
/* What an input or output is: its elements lie one after the other, the last dimension fastest. */
typedef struct weft_tensor {
    const char *name;
    const char *dtype; /* "float32", "int64", …; float16 and bfloat16 are given by their bits, as uint16_t */
    int64_t bytes;     /* of all elements */
    int64_t rank;
    const int64_t *shape;
} weft_tensor;
#endif

#define WEFT_${upper}_INPUTS $inputs
#define WEFT_${upper}_OUTPUTS $outputs

$functions/* The inputs and outputs, from 0; null for a number that there is not. */
const weft_tensor *weft_${name}_input(int32_t number);
const weft_tensor *weft_${name}_output(int32_t number);

/* A sentence about a code. */
const char *weft_${name}_error(int32_t code);

#ifdef __cplusplus
}
#endif
#endif
"""

_LIBRARY = """\
/* An instance of the model: its working memory. Weights are shared by all instances. */
typedef struct weft_$name weft_$name;

/* Makes an instance. threads: how many a run uses; 0 for one per processor that this process may run on (its affinity
   mask; a container's quota is not asked, so give a number there). Gives 0, or a code (see weft_${name}_error).$said */
int32_t weft_${name}_create(int32_t threads, ${weights}weft_$name **made);

/* Runs the model: inputs[i] is read, outputs[i] is written; each is one contiguous array of the size that
   weft_${name}_input(i) or weft_${name}_output(i) tells, aligned for its elements (64 bytes is fastest). The arrays
   must not overlap. Gives 0 or a code. One instance runs one call at a time; threads use instances of their own. */
int32_t weft_${name}_run(weft_$name *model, const void *const *inputs, void *const *outputs);

/* Frees an instance; null is allowed. */
void weft_${name}_destroy(weft_$name *model);

/* The number of threads that an instance uses. */
int32_t weft_${name}_threads(const weft_$name *model);

"""

_PLAIN = """\
/* The working memory of a run, which the caller gives: so many bytes at a multiple of 8. Nothing else is allocated. */
#define WEFT_${upper}_ARENA_BYTES $arena

/* Runs the model: inputs[i] is read, outputs[i] is written; each is one contiguous array of the size that
   weft_${name}_input(i) or weft_${name}_output(i) tells, aligned for its elements (64 bytes is fastest). The arrays
   must not overlap. Gives 0 or a code. One arena serves one call at a time.$said */
int32_t weft_${name}_run(void *arena, ${weights}const void *const *inputs, void *const *outputs);

"""

_EXAMPLE = """\
/* Runs the model once.
       $build [INPUT.bin ...]
   Each INPUT.bin holds the elements of one input, in order; inputs without a file are zeros.
   Output number i is written to output_i.bin; the first elements of float32 outputs are printed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "$name.h"

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\\n", what, why);
    exit(1);
}

${arena}static void *room_for(size_t bytes) {
    void *room = calloc(bytes + 1, 1);
    if (room == NULL) fail("memory", "there is not enough of it");
    return room;
}

static void read_file(const char *path, void *room, size_t bytes) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) fail(path, "cannot be opened");
    if (fread(room, 1, bytes, file) != bytes || fgetc(file) != EOF) fail(path, "does not have the right size");
    fclose(file);
}

static void write_output(int number, const weft_tensor *tensor, const void *elements) {
    char path[32];
    snprintf(path, sizeof path, "output_%d.bin", number);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(elements, 1, (size_t)tensor->bytes, file) != (size_t)tensor->bytes || fclose(file) != 0)
        fail(path, "cannot be written");
    printf("%s %s[", tensor->name, tensor->dtype);
    for (int64_t i = 0; i < tensor->rank; i++) printf(i ? ", %lld" : "%lld", (long long)tensor->shape[i]);
    printf("]");
    if (strcmp(tensor->dtype, "float32") == 0)
        for (int64_t i = 0; i < 8 && i < tensor->bytes / 4; i++) printf(" %g", ((const float *)elements)[i]);
    printf("\\n");
}

int main(int count, char **words) {
    void *inputs[WEFT_${upper}_INPUTS + 1], *outputs[WEFT_${upper}_OUTPUTS + 1];
    if (count - 1 > WEFT_${upper}_INPUTS) fail(words[0], "there are more files than inputs");
    for (int i = 0; i < WEFT_${upper}_INPUTS; i++) {
        inputs[i] = room_for((size_t)weft_${name}_input(i)->bytes);
        if (i + 1 < count) read_file(words[i + 1], inputs[i], (size_t)weft_${name}_input(i)->bytes);
    }
    for (int i = 0; i < WEFT_${upper}_OUTPUTS; i++) outputs[i] = room_for((size_t)weft_${name}_output(i)->bytes);

$before
    code = weft_${name}_run(${given}(const void *const *)inputs, outputs);
    if (code != 0) fail("run", weft_${name}_error(code));
    for (int i = 0; i < WEFT_${upper}_OUTPUTS; i++) write_output(i, weft_${name}_output(i), outputs[i]);

$after    for (int i = 0; i < WEFT_${upper}_INPUTS; i++) free(inputs[i]);
    for (int i = 0; i < WEFT_${upper}_OUTPUTS; i++) free(outputs[i]);
    return 0;
}
"""
