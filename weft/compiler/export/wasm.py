"""A model as a package for JavaScript: NAME.wasm, a loader for Node and for a page, its types, and an example.

The WebAssembly module has a memory of its own, which grows as it needs; what it takes from outside are functions of the
mathematics library alone, which the loader gives from `Math`.
"""

from __future__ import annotations

import json
from string import Template

from weft.compiler.export.plan import LibraryPlan, Tensor
from weft.core.version import VERSION
from weft.runtime.model.module_file import padded

ARRAYS = {
    "float32": "Float32Array", "float64": "Float64Array", "float16": "Uint16Array", "bfloat16": "Uint16Array",
    "float8_e4m3fn": "Uint8Array", "float8_e5m2": "Uint8Array",
    "int8": "Int8Array", "int16": "Int16Array", "int32": "Int32Array", "int64": "BigInt64Array", "bool": "Uint8Array",
    "uint8": "Uint8Array", "uint16": "Uint16Array", "uint32": "Uint32Array", "uint64": "BigUint64Array",
}  # fmt: skip
"""The arrays of JavaScript that hold elements; 16-bit floats are given by their bits."""


def package(plan: LibraryPlan, beside: bool) -> dict[str, str]:
    """The texts of the package, by file."""
    about = {
        "name": plan.name, "version": VERSION, "description": f"{plan.title}, compiled by Weft", "type": "module",
        "main": f"{plan.name}.js", "types": f"{plan.name}.d.ts",
    }  # fmt: skip
    words = {
        "name": plan.name,
        "title": plan.title,
        "inputs": json.dumps([_told(one) for one in plan.inputs]),
        "outputs": json.dumps([_told(one) for one in plan.outputs]),
        "weights": sum(padded(array.nbytes) for array in plan.arrays) or padded(0) if beside else 0,
        "given": _types(plan.inputs),
        "made": _types(plan.outputs),
    }
    return {
        f"{plan.name}.js": Template(_LOADER).substitute(words),
        f"{plan.name}.d.ts": Template(_TYPES).substitute(words),
        "main.mjs": Template(_EXAMPLE).substitute(words),
        "package.json": json.dumps(about, indent=2) + "\n",
    }


def _told(one: Tensor) -> dict[str, object]:
    array = ARRAYS.get(one.dtype, "Uint8Array")
    return {"name": one.name, "dtype": one.dtype, "shape": one.shape, "bytes": one.bytes, "array": array}


def _types(tensors: list[Tensor]) -> str:
    rows = [f"  {json.dumps(one.name)}: {ARRAYS.get(one.dtype, 'Uint8Array')};" for one in tensors]
    return "\n".join(rows)


_LOADER = """\
// $title: loads $name.wasm in Node and in a page.
//     import { load } from "./$name.js";
//     const model = await load();
//     const results = model.run({ name: array, … });

const INPUTS = $inputs;
const OUTPUTS = $outputs;
const WEIGHTS = $weights;
const ARRAYS = {
  Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, BigInt64Array, Uint8Array, Uint16Array, Uint32Array,
  BigUint64Array,
};

async function bytesOf(source) {
  if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) return source;
  const url = new URL(source, import.meta.url);
  if (url.protocol !== "file:") {
    const answer = await fetch(url);
    if (!answer.ok) throw new Error(url + ": " + answer.status + " " + answer.statusText);
    return answer.arrayBuffer();
  }
  const { readFile } = await import("node:fs/promises");
  return readFile(url);
}

// Functions of the C library's mathematics by their names there: expf, tanh, …
function mathematics(name) {
  const single = !(name in Math) && name.endsWith("f");
  const found = Math[single ? name.slice(0, -1) : name] ?? { fmod: (a, b) => a % b }[single ? name.slice(0, -1) : name];
  if (found === undefined) throw new Error("$name.wasm wants the function " + name + ", which JavaScript has not");
  return found;
}

class Model {
  #exports;
  #instance;
  #arrays;
  #pointers;

  constructor(exports, weights) {
    this.#exports = exports;
    this.inputs = INPUTS;
    this.outputs = OUTPUTS;
    const room = (bytes) => {
      const address = exports.weft_allocate(BigInt(Math.max(bytes, 8)));
      if (address === 0) throw new Error("there is not enough memory for $name");
      return address;
    };
    const given = [];
    if (WEIGHTS > 0) {
      if (weights.byteLength !== WEIGHTS)
        throw new Error("the weights of $name are " + WEIGHTS + " bytes, not " + weights.byteLength);
      given.push(room(WEIGHTS));
      const bytes = new Uint8Array(weights.buffer ?? weights, weights.byteOffset ?? 0, WEIGHTS);
      new Uint8Array(exports.memory.buffer).set(bytes, given[0]);
    }
    const made = room(4);
    this.#check(exports.weft_${name}_create(1, ...given, made));
    this.#instance = new Uint32Array(exports.memory.buffer, made, 1)[0];
    this.#arrays = [INPUTS, OUTPUTS].map((tensors) => tensors.map((one) => room(one.bytes)));
    this.#pointers = this.#arrays.map((addresses) => {
      const table = room(4 * addresses.length);
      new Uint32Array(exports.memory.buffer, table, addresses.length).set(addresses);
      return table;
    });
  }

  #check(code) {
    if (code === 0) return;
    const start = this.#exports.weft_${name}_error(code);
    const bytes = new Uint8Array(this.#exports.memory.buffer, start);
    throw new Error("$name: " + new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0))));
  }

  run(inputs) {
    INPUTS.forEach((one, at) => {
      const array = inputs[one.name];
      if (!(array instanceof ARRAYS[one.array]) || array.byteLength !== one.bytes)
        throw new TypeError("the input " + one.name + " is a " + one.array + " of " + one.bytes + " bytes");
      new ARRAYS[one.array](this.#exports.memory.buffer, this.#arrays[0][at], array.length).set(array);
    });
    this.#check(this.#exports.weft_${name}_run(this.#instance, ...this.#pointers));
    // The memory may have grown meanwhile, and then its old buffer is gone.
    const results = OUTPUTS.map((one, at) => {
      const kind = ARRAYS[one.array];
      const count = one.bytes / kind.BYTES_PER_ELEMENT;
      return [one.name, new kind(this.#exports.memory.buffer, this.#arrays[1][at], count).slice()];
    });
    return Object.fromEntries(results);
  }
}

export async function load(options = {}) {
  const module = await WebAssembly.compile(await bytesOf(options.wasm ?? "$name.wasm"));
  const env = {};
  for (const one of WebAssembly.Module.imports(module)) env[one.name] = mathematics(one.name);
  const { exports } = await WebAssembly.instantiate(module, { env });
  return new Model(exports, WEIGHTS > 0 ? await bytesOf(options.weights ?? "$name.bin") : null);
}
"""

_TYPES = """\
/** What an input or output is; `array` names the typed array that holds its elements, the last dimension fastest. */
export interface Tensor {
  readonly name: string;
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly bytes: number;
  readonly array: string;
}

export interface Inputs {
$given
}

export interface Outputs {
$made
}

export interface Model {
  readonly inputs: readonly Tensor[];
  readonly outputs: readonly Tensor[];
  /** The outputs for these inputs; the arrays are new. */
  run(inputs: Inputs): Outputs;
}

/** The model. `wasm` and `weights` are where its files are (default: beside the loader), or their bytes. */
export function load(options?: {
  wasm?: string | URL | ArrayBuffer | ArrayBufferView;
  weights?: string | URL | ArrayBuffer | ArrayBufferView;
}): Promise<Model>;
"""

_EXAMPLE = """\
// Runs the model once:  node main.mjs [INPUT.bin ...]
// Each INPUT.bin holds the elements of one input; inputs without a file are zeros. Output i goes to output_i.bin.
import { readFileSync, writeFileSync } from "node:fs";
import { load } from "./$name.js";

const model = await load();
const inputs = {};
if (process.argv.length > model.inputs.length + 2) throw new Error("there are more files than inputs");
model.inputs.forEach((one, at) => {
  const file = process.argv[at + 2];
  const bytes = file ? new Uint8Array(readFileSync(file)) : new Uint8Array(one.bytes);
  if (bytes.length !== one.bytes) throw new Error(file + ": does not have the right size, " + one.bytes + " bytes");
  inputs[one.name] = new globalThis[one.array](bytes.buffer);
});
Object.entries(model.run(inputs)).forEach(([name, array], at) => {
  writeFileSync("output_" + at + ".bin", new Uint8Array(array.buffer));
  console.log(name, array.slice(0, 8).join(" "));
});
"""
