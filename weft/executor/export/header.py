"""The C header of a library, and an example that builds and runs."""

from __future__ import annotations

from collections.abc import Sequence
from string import Template

from weft.core.version import VERSION
from weft.executor.export.plan import LibraryPlan, Tensor

_C_TYPES = {
    "float32": "float", "float64": "double", "float16": "uint16_t", "bfloat16": "uint16_t", "bool": "uint8_t",
    "int8": "int8_t", "int16": "int16_t", "int32": "int32_t", "int64": "int64_t",
    "uint8": "uint8_t", "uint16": "uint16_t", "uint32": "uint32_t", "uint64": "uint64_t",
}  # fmt: skip
"""Element types of C that hold the elements; 16-bit floats are given by their bits."""


def header_text(plan: LibraryPlan) -> str:
    """The header."""
    return Template(_HEADER).substitute(
        name=plan.name,
        upper=plan.name.upper(),
        title=_comment(plan.title),
        version=VERSION,
        cpu=plan.target.cpu,
        inputs=len(plan.inputs),
        outputs=len(plan.outputs),
        input_lines=_lines(plan.inputs),
        output_lines=_lines(plan.outputs),
    )


def example_text(plan: LibraryPlan) -> str:
    """The example, main.c."""
    return Template(_EXAMPLE).substitute(name=plan.name, upper=plan.name.upper())


def c_type(dtype: str) -> str:
    """The C type that holds an element; bytes where C has none."""
    return _C_TYPES.get(dtype, "uint8_t")


def _comment(text: str) -> str:
    return text.replace("*/", "* /").replace("\n", " ")


def _lines(tensors: Sequence[Tensor]) -> str:
    rows = [
        f"     {at}  {c_type(one.dtype)} {_comment(one.name)}{''.join(f'[{size}]' for size in one.shape)}"
        f"   ({one.dtype}, {one.bytes} bytes)"
        for at, one in enumerate(tensors)
    ]
    return "\n".join(rows) or "     none"


_HEADER = """\
/* $title, compiled by Weft $version for $cpu. Link with -l$name; neither Python nor Weft is needed.

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

/* An instance of the model: its working memory. Weights are shared by all instances. */
typedef struct weft_$name weft_$name;

/* Makes an instance. threads: how many a run uses; 0 for one per processor that this process may run on (its affinity
   mask; a container's quota is not asked, so give a number there). Gives 0, or a code (see weft_${name}_error). */
int32_t weft_${name}_create(int32_t threads, weft_$name **made);

/* Runs the model: inputs[i] is read, outputs[i] is written; each is one contiguous array of the size that
   weft_${name}_input(i) or weft_${name}_output(i) tells, aligned for its elements (64 bytes is fastest). The arrays
   must not overlap. Gives 0 or a code. One instance runs one call at a time; threads use instances of their own. */
int32_t weft_${name}_run(weft_$name *model, const void *const *inputs, void *const *outputs);

/* Frees an instance; null is allowed. */
void weft_${name}_destroy(weft_$name *model);

/* The number of threads that an instance uses. */
int32_t weft_${name}_threads(const weft_$name *model);

/* The inputs and outputs, from 0; null for a number that there is not. */
const weft_tensor *weft_${name}_input(int32_t number);
const weft_tensor *weft_${name}_output(int32_t number);

/* A sentence about a code. */
const char *weft_${name}_error(int32_t code);

#ifdef __cplusplus
}
#endif
#endif
"""

_EXAMPLE = """\
/* Runs the model once.
       cc main.c -L. -l$name -o main && LD_LIBRARY_PATH=. ./main [INPUT.bin ...]
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

static void *room_for(const weft_tensor *tensor) {
    size_t bytes = ((size_t)tensor->bytes + 64) / 64 * 64;
    void *room = aligned_alloc(64, bytes);
    if (room == NULL) fail(tensor->name, "there is not enough memory");
    return memset(room, 0, bytes);
}

static void read_file(const char *path, void *room, size_t bytes) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) fail(path, "cannot be opened");
    if (fread(room, 1, bytes, file) != bytes || fgetc(file) != EOF) fail(path, "does not have the input's size");
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
        inputs[i] = room_for(weft_${name}_input(i));
        if (i + 1 < count) read_file(words[i + 1], inputs[i], (size_t)weft_${name}_input(i)->bytes);
    }
    for (int i = 0; i < WEFT_${upper}_OUTPUTS; i++) outputs[i] = room_for(weft_${name}_output(i));

    weft_$name *model;
    int32_t code = weft_${name}_create(0, &model);
    if (code != 0) fail("create", weft_${name}_error(code));
    code = weft_${name}_run(model, (const void *const *)inputs, outputs);
    if (code != 0) fail("run", weft_${name}_error(code));
    for (int i = 0; i < WEFT_${upper}_OUTPUTS; i++) write_output(i, weft_${name}_output(i), outputs[i]);

    weft_${name}_destroy(model);
    for (int i = 0; i < WEFT_${upper}_INPUTS; i++) free(inputs[i]);
    for (int i = 0; i < WEFT_${upper}_OUTPUTS; i++) free(outputs[i]);
    return 0;
}
"""
