"""The house rules that a machine can check: layers, import cycles, sizes, bare excepts, prints, sets of operators.

The layers are those of the table in docs/architecture.md. Every import counts: at the top of a file, inside a function,
under TYPE_CHECKING, relative, or as `import_module("weft…")`. Each rule is a function from a tree of parsed files to a
list of sentences, one per violation; `test_architecture_rules.py` runs them on small trees that break them.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Programs that sit on top of everything, and the package itself (its names are loaded when they are first used).
TOP_MODULES = {"__init__", "__main__", "demo", "cli"}
# Tighter than the table: these see only what is named here.
ONLY = {"core": set(), "runtime": {"core"}, "expr": {"core"}, "loop": {"core", "expr"}}
MOST_LINES_OF_FILE = 700
MOST_LINES_OF_FUNCTION = 90
MOST_LINES = {
    "weft": 104_852, "weft.frontends": 9_610, "weft.tuner": 3_765, "weft.targets.vdla": 2_500, "weft.pool": 2_150,
    "weft.explore": 800,
}  # fmt: skip
"""Of each room, what is in a room of its own not counted ("weft": all the rest). A number moves down whenever something
is replaced, up only with a reason in the commit; `git log -p` of these lines tells what came (open sizes 3,200 lines,
decoding 2,500, attention 1,900, control flow 1,600, the copy engine 1,100, kernels that stay for all steps of a
recurrence 480, sums of a token's products exchanged between lanes 475, words of few bits through shared memory 125,
what tiles leave over of open sizes and shares of weights fetched 87, places that
are not zero 117, taps beside an image passed over and windows with gaps by phases 343, words of few bits on tensor
cores, and clusters that share k, 515, strips of open size, kernels made beside, short calls 154, what
a processor's model counts of cut tiles, of operands that come again, and of lines and images that are far 102, borders
filled by the loops inside them 104, weights ahead 115, ways of forms 36, pieces
that threads fetch 25, groups of channels as products on GPUs, and lines of images and rows that share places 145, for
116 that went). The next has to take something away."""
NO_CIRCLES = ("weft.compiler", "weft.runtime")
"""Rooms whose files import each other in one direction only, wherever in a file they do so: in functions, too."""
MAY_PRINT = {"demo", "cli"}
SHARED_BY_TARGETS = {"gpu"}
"""Folders of weft/targets that are no target: what several targets have in common."""
ASK_TRAITS = ("weft.graph", "weft.compiler", "weft.quantization", "weft.plan", "weft.targets", "weft.tuner")
"""Where a fact about an operator is asked of the operator (`weft.graph.opspec.has`), never listed."""
PATTERNS = {
    ("weft.graph.passes.attention", "Div Mul"),  # what scales a view of the keys
    ("weft.graph.passes.attention", "Attention Softmax"),  # without one of them there is no attention
    ("weft.graph.passes.fix_weights", "GRU LSTM RNN"),  # and the activations by which their states stay bounded
    ("weft.graph.passes.fix_weights", "Sigmoid Tanh"),
    ("weft.graph.passes.fold_strides", "Conv ConvInteger"),  # what is rewritten
    ("weft.graph.passes.fuse", "Cast DequantizeLinear"),  # what undoes a Cast, a QuantizeLinear
    ("weft.graph.passes.quantized", "Add DequantizeLinear Mul Relu"),  # behind which a division goes
    ("weft.graph.passes.signed_data", "ConvInteger MatMulInteger"),  # what is rewritten
    ("weft.graph.passes.signed_data", "Concat MaxPool"),
    ("weft.quantization.insert", "Conv Gemm MatMul"),  # what is rewritten
    ("weft.targets.vdla.offload", "ConvInteger MatMulInteger"),  # what the accelerator computes
    ("weft.targets.vdla.offload", "Add Mul Sub"),
}
"""The operators that a rewriting is written for: files, and names in order."""
CHOOSING = (
    "weft.targets", "weft.plan", "weft.graph.passes", "weft.loop.passes", "weft.compiler", "weft.runtime", "weft.pool",
    "weft.tuner",
)  # fmt: skip
"""Where choices are made. A number that steers one has an owner: a machine (machine.py), or a model (model.py; that of
compiling and running is core/model.py); the tuner, whose model.py is another thing, and the pool have settings.py."""
FACTS = {
    "an input or axis by its place, a choice by its number": "cpu.sketches.winograd BOTH CHANNEL, "
    "graph.passes.fix_weights WEIGHT PLAIN STATE, graph.passes.layout CHANNEL, graph.passes.pad_channels CHANNEL, "
    "compiler.control.bodies _VALUE _RANK, tuner.model STANDS",
    "a code or unit of a format": "cpu.amx ARCH_PRCTL REQUEST_PERMISSION TILE_DATA, cpu.facts _KB _MB, "
    "cpu.processors _KB _MB, cuda.device DLPACK_CUDA _DEFAULT_STREAMS, cuda.driver _OUT_OF_MEMORY _NO_DEVICE "
    "_DYNAMIC_SHARED _CAPTURE_RELAXED _EXTERNAL _SWIZZLE_128 _PROMOTION_128, "
    "graph.passes.layout FLOAT_BYTES, graph.passes.quantized _FLOAT32 "
    "_INT32, graph.passes.signed_data _INT8 _UINT8, "
    "loop.passes.insert_prefetch SECOND_LEVEL, vdla.isa ILLEGAL RANGE DEADLOCK TIMEOUT SHIFT_BITS ROUNDS "
    "POSITIVE, vdla.offload _INT32 _UINT8, tuner.database FORMAT, compiler.control.llvm_ir ASKED, "
    "compiler.control.parts DECLINED STOPPED, "
    "pool.device INFO PUT RUN GOOD BAD, runtime.abi FORMAT TURN_BIT, runtime.dlpack CPU_DEVICES _BFLOAT_CODE "
    "_READ_ONLY_FLAG, runtime.faults NO_MEMORY OUTSIDE KERNEL_SHIFT, runtime.fingerprint LEAF_BYTES, "
    "runtime.model.keys KEY_BYTES",
    "where memory starts": "compiler.device.runner ALIGNMENT, compiler.lowering.memory "
    "ALIGNMENT, compiler.lowering.weights ALIGNMENT, runtime.arrays ALIGNMENT, runtime.model.module_file ALIGNMENT",
    "how a text looks": "compiler.export.c_source WORDS_A_LINE, compiler.export.plan MOST_NAMED, "
    "compiler.reports.profile_text WIDEST_NAMES",
    "what is refused of a file or a message, since nobody makes such": "compiler.saved.check_file MOST_DIMENSIONS "
    "MOST_THREADS, pool.device MOST_ANSWER, runtime.model.manifest LARGEST, runtime.model.module_file MOST_SWELLING "
    "MOST_SMALL, runtime.native MAXIMUM_THREADS",
    "what an instruction does, or a line holds": "cpu.amx TILE, cpu.dot GROUP SQUARE, cuda.bulk MOST_ROWS "
    "MOST_DIMENSIONS, cuda.producer GROUP WARP REGISTERS FEWEST, cuda.copies SIZES, cuda.mma ROWS TILE_BYTES, "
    "cuda.streamed MOST_ROWS, cuda.streamed_tiles DEPTH, cuda.streamed_words GROUP UNIT, "
    "cuda.swizzle LINE CHUNK LINES, cuda.wgmma ROWS LINE WIDTHS MANY, "
    "graph.passes.cached_attention LANES, loop.passes.insert_prefetch LINE, loop.passes.transpose_stores LANES, "
    "loop.passes.vectorize MAX_LANES, vdla.isa INSTRUCTION_BITS CLOCK, vdla.offload MOST_PAD",
    "what numbers a type holds": "cpu.algorithms MOST_WEIGHT, graph.passes.causal_blocks FAR_BELOW, "
    "graph.passes.few_bits MOST_BLOCK, graph.passes.pad_channels ROUNDING SMALLEST, graph.passes.signed_data HALF, "
    "loop.passes.narrow_indices _LEAST _MOST, vdla.offload EXACT",
    "how a measurement is made": "cpu.calibrate MOST_BYTES CHAIN STREAMS RUNS RUN_SECONDS, cpu.peaks UNROLL, "
    "cuda.peaks COPIED_BYTES REPEATS, compiler.reports.profile LEAST_RUNS MOST_RUNS, compiler.sizes.open_checks FIRST",
    "an end to what might go on": "compiler.cache.code_key _DEEPEST, compiler.cache.models _ABANDONED_SECONDS, "
    "compiler.control.llvm_ir MOST_TURNS, compiler.kernels.workers _MOST_JOBS, pool.ca DAYS, "
    "runtime.model.fastcall MOST_ADDED, graph.passes.infer _ROUNDS, graph.passes.normalize MOST_ROUNDS, "
    "loop.passes.split_host_device MOST_LAUNCHES",
    "bits that another library gives their meaning": "runtime.model.fastcall READABLE WRITABLE",
    "fitted, with its error, in a room that another hand rebuilds": "vdla.schedule BUBBLE TRIALS",
}
"""Numbers in those rooms that steer nothing: what they are, modules (`weft.` and `targets.` left out) and names."""


@dataclass(frozen=True)
class Import:
    """One module that another imports."""

    source: str
    target: str
    line: int
    at_load: bool
    """Runs when the file is loaded: neither inside a function nor under TYPE_CHECKING."""


@dataclass(frozen=True)
class Module:
    """One parsed file: its dotted name, e.g. weft.loop.ir (a package's own file has the package's name)."""

    name: str
    path: Path
    text: str
    tree: ast.Module
    nodes: list[ast.AST]
    """All of the tree: each rule looks at them once more."""
    imports: list[Import] = field(default_factory=list)
    """What it imports of its own package, wherever in the file it does so."""

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def part(self) -> str:
        """The folder (or top-level file) the module belongs to: "loop" for weft.loop.ir, "__init__" for weft itself."""
        return part_of(self.name)


def part_of(name: str) -> str:
    pieces = name.split(".")
    return pieces[1] if len(pieces) > 1 else "__init__"


def read_package(package: Path) -> dict[str, Module]:
    """Every Python file of a package, by dotted name."""
    modules = {}
    for path in sorted(package.rglob("*.py")):
        pieces = [package.name, *path.relative_to(package).with_suffix("").parts]
        name = ".".join(pieces[:-1] if pieces[-1] == "__init__" else pieces)
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text, filename=str(path))
        modules[name] = Module(name, path, text, tree, list(ast.walk(tree)))
    known = {
        ".".join(pieces[:end]) for name in modules for pieces in [name.split(".")] for end in range(1, len(pieces) + 1)
    }
    for module in modules.values():
        module.imports.extend(imports_of(module, known))
    return modules


def read_layers(page: str) -> dict[str, int]:
    """The layer table of the architecture page: {"core": 0, "runtime": 1, …}."""
    section = re.search(r"^## Layers$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert section, "docs/architecture.md has no section '## Layers'"
    rows = re.findall(r"^ *(\d+) +(\w+)(?:/|\.py)", section[1], re.MULTILINE)
    assert rows, "the section '## Layers' has no table of layers"
    return {name: int(layer) for layer, name in rows}


def imports_of(module: Module, known: set[str]) -> list[Import]:
    """What a module imports of its own package; `known` are the files and the folders that hold one."""
    later = lines_not_run_at_load(module)
    found = []
    for node in module.nodes:
        for target in targets_of(node, module, known):
            if target.split(".")[0] == module.name.split(".")[0]:
                found.append(Import(module.name, target, node.lineno, node.lineno not in later))
    return found


def targets_of(node: ast.AST, module: Module, known: set[str]) -> Iterator[str]:
    """The dotted names one node imports; `from a import b` is a.b where that is a module, and a otherwise."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = absolute_base(node, module)
        for alias in node.names:
            yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base
    elif isinstance(node, ast.Call) and node.args and called_name(node) in ("import_module", "__import__"):
        first = node.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield first.value


def absolute_base(node: ast.ImportFrom, module: Module) -> str:
    """The package a `from … import` starts at, with leading dots resolved."""
    if not node.level:
        return node.module or ""
    pieces = module.name.split(".")
    up = node.level - 1 if module.is_package else node.level
    return ".".join(pieces[: len(pieces) - up] + ([node.module] if node.module else []))


def called_name(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def lines_not_run_at_load(module: Module) -> set[int]:
    """Lines inside functions and inside `if TYPE_CHECKING:`."""
    lines: set[int] = set()
    for node in module.nodes:
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        test = node.test if isinstance(node, ast.If) else None
        asked = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
        if is_function or asked == "TYPE_CHECKING":
            for statement in node.body:
                lines.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return lines


# The rules.


def layer_violations(modules: dict[str, Module], layers: dict[str, int]) -> list[str]:
    """Imports that point up or sideways in the table, and modules the table does not know."""
    found = []
    for module in modules.values():
        if module.part in TOP_MODULES:
            continue
        if module.part not in layers:
            found.append(f"{module.name}: '{module.part}' is not in the layer table of docs/architecture.md")
            continue
        for one in module.imports:
            reason = why_forbidden(module.part, part_of(one.target), layers)
            if reason:
                found.append(f"{module.name}:{one.line} imports {one.target}: {reason}")
    return found


def why_forbidden(source: str, target: str, layers: dict[str, int]) -> str:
    """The reason that one part may not import another, or nothing."""
    if source == target:
        return ""
    if target in TOP_MODULES:
        return "this is above everything"
    if target not in layers:
        return f"'{target}' is not in the layer table"
    if layers[target] > layers[source]:
        return f"layer {layers[source]} may not import layer {layers[target]}"
    if layers[target] == layers[source]:
        return f"two parts of layer {layers[source]} may not know each other"
    if source in ONLY and target not in ONLY[source]:
        return f"{source} may import only {', '.join(sorted(ONLY[source])) or 'itself'}"
    return ""


def target_violations(modules: dict[str, Module]) -> list[str]:
    """Imports of one target's folder from outside weft/targets, or from another target's folder."""
    found = []
    folders = {name.split(".")[2] for name in modules if name.startswith("weft.targets.") and name.count(".") >= 3}
    folders -= SHARED_BY_TARGETS
    for module in modules.values():
        home = module.name.split(".")[:3]
        for one in module.imports:
            pieces = one.target.split(".")
            if pieces[1:2] != ["targets"] or len(pieces) < 3 or pieces[2] not in folders or home == pieces[:3]:
                continue
            if home[1:2] != ["targets"] or (len(home) == 3 and home[2] in folders):
                found.append(f"{module.name}:{one.line} imports {one.target}: only weft/targets knows targets by name")
    return found


def import_cycles(modules: dict[str, Module]) -> list[str]:
    """Circles of modules that import each other when they are loaded.

    Inside one folder a function may import late (a node's __repr__ the printer, say), but not in the rooms of
    NO_CIRCLES; across folders the layers forbid circles.
    """
    strict = {name for name in modules if name.startswith(tuple(f"{room}." for room in NO_CIRCLES))}
    edges = {
        name: sorted({i.target for i in module.imports if i.at_load or name in strict} - {name})
        for name, module in modules.items()
        if name != "weft"
    }
    return [" -> ".join([*circle, circle[0]]) for circle in circles(edges)]


def circles(edges: dict[str, list[str]]) -> list[list[str]]:
    """One circle for each group of names that reach each other."""
    found: list[list[str]] = []
    done: set[str] = set()
    for start in sorted(edges):
        if start in done:
            continue
        path = shortest_way_back(start, edges)
        if path:
            found.append(path)
            done.update(path)
    return found


def shortest_way_back(start: str, edges: dict[str, list[str]]) -> list[str]:
    """The shortest walk from a name back to itself, without the return; empty when there is none."""
    came_from: dict[str, str] = {}
    frontier = [start]
    while frontier:
        reached = []
        for name in frontier:
            for target in edges.get(name, ()):
                if target == start:
                    return walk_back(name, start, came_from)
                if target not in came_from:
                    came_from[target] = name
                    reached.append(target)
        frontier = reached
    return []


def walk_back(name: str, start: str, came_from: dict[str, str]) -> list[str]:
    path = [name]
    while path[-1] != start:
        path.append(came_from[path[-1]])
    return path[::-1]


def size_violations(modules: dict[str, Module]) -> list[str]:
    """Files and functions that are too long to read."""
    found = []
    for module in modules.values():
        lines = len(module.text.splitlines())
        if lines > MOST_LINES_OF_FILE:
            found.append(f"{module.name} has {lines} lines (at most {MOST_LINES_OF_FILE}): split it")
        for node in module.nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MOST_LINES_OF_FUNCTION:
                    where = f"{module.name}:{node.lineno} {node.name}"
                    found.append(f"{where} has {length} lines (at most {MOST_LINES_OF_FUNCTION}): split it")
    return found


def total_violations(modules: dict[str, Module], most: dict[str, int]) -> list[str]:
    """Rooms that grow beyond what one can keep in mind."""
    lines = dict.fromkeys(most, 0)
    for module in modules.values():
        rooms = [room for room in most if f"{module.name}.".startswith(f"{room}.")]
        lines[max(rooms, key=len)] += len(module.text.splitlines())
    return [f"{room} has {lines[room]} lines (at most {most[room]}): replace something" for room in most
            if lines[room] > most[room]]  # fmt: skip


def habit_violations(modules: dict[str, Module]) -> list[str]:
    """Bare excepts, and prints outside the programs."""
    found = []
    for module in modules.values():
        for node in module.nodes:
            if isinstance(node, ast.ExceptHandler) and node.type is None:
                found.append(f"{module.name}:{node.lineno} has a bare except: name the errors it expects")
            is_print = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            if is_print and module.part not in MAY_PRINT:
                found.append(f"{module.name}:{node.lineno} prints: return the text, or use logging")
    return found


def operator_sets(modules: dict[str, Module], operators: set[str]) -> Iterator[tuple[Module, int, str]]:
    """The literals that name several operators, and `x.op == "A" or x.op == "B"`: where they stand, and the names.

    A dict from operators to code, a table of rules, is none.
    """
    for module in modules.values():
        if module.name.startswith(ASK_TRAITS):
            for node in module.nodes:
                found = sorted({text for text in texts_of(node) if text in operators})
                if len(found) > 1:
                    yield module, node.lineno, " ".join(found)


def texts_of(node: ast.AST) -> list[str]:
    """The texts that a collection holds or that one thing is compared with."""
    parts: list[ast.AST | None] = []
    if isinstance(node, (ast.Set, ast.Tuple, ast.List)):
        parts = [*node.elts]
    elif isinstance(node, ast.Dict) and not any(isinstance(n, ast.Name) for v in node.values for n in ast.walk(v)):
        parts = [*node.keys]
    elif isinstance(node, ast.BoolOp):
        parts = [side for one in node.values if isinstance(one, ast.Compare) for side in (one.left, *one.comparators)]
    elif isinstance(node, ast.Call) and called_name(node) == "split" and isinstance(node.func, ast.Attribute):
        text = node.func.value
        return text.value.split() if isinstance(text, ast.Constant) and isinstance(text.value, str) else []
    return [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def numbers_of(modules: dict[str, Module]) -> Iterator[tuple[str, int, str]]:
    """The numbers that have a name in files that choose: module, line, name."""
    for module in modules.values():
        owners = ("settings",) if module.name.startswith(("weft.tuner.", "weft.pool.")) else ("model", "machine")
        if module.name.startswith(CHOOSING) and module.path.stem not in owners:
            for node in module.tree.body:
                if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and is_number(node.value):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    for one in (one for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)):
                        if one.id.isupper():  # others are state
                            yield module.name, node.lineno, one.id


def is_number(value: ast.expr) -> bool:
    """Whether an expression is numbers and nothing else."""
    if isinstance(value, (ast.Tuple, ast.List)):
        return bool(value.elts) and all(map(is_number, value.elts))
    if isinstance(value, ast.BinOp):
        return is_number(value.left) and is_number(value.right)
    if isinstance(value, ast.UnaryOp):
        return is_number(value.operand)
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def number_violations(modules: dict[str, Module], facts: dict[str, str]) -> list[str]:
    """Numbers that steer a choice far from a model, and facts that are no more."""
    known = {
        (part.split()[0], name) for text in facts.values() for part in text.split(", ") for name in part.split()[1:]
    }
    found = {(re.sub(r"^weft\.(targets\.)?", "", module), name): line for module, line, name in numbers_of(modules)}
    return [
        *(f"{module}:{found[module, name]} {name}: a number that steers a choice belongs into a model.py or machine.py"
          for module, name in sorted(found.keys() - known)),
        *(f"{module} has no {name} any more" for module, name in sorted(known - found.keys())),
    ]  # fmt: skip


def docstring_violations(modules: dict[str, Module]) -> list[str]:
    """Files that do not open by saying what goes in and what comes out."""
    return [f"{name} has no docstring at its top" for name, module in modules.items() if not says_what_it_is(module)]


def says_what_it_is(module: Module) -> bool:
    return bool(ast.get_docstring(module.tree)) or not module.tree.body


# Weft keeps them.


@pytest.fixture(scope="module")
def weft_modules():
    return read_package(ROOT / "weft")


@pytest.fixture(scope="module")
def layers():
    return read_layers((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))


def holds(violations: list[str]) -> None:
    assert not violations, "\n" + "\n".join(violations)


def test_imports_point_down(weft_modules, layers):
    holds(layer_violations(weft_modules, layers))


def test_only_targets_know_targets(weft_modules):
    holds(target_violations(weft_modules))


def test_no_import_cycles(weft_modules):
    holds(import_cycles(weft_modules))


def test_files_and_functions_are_short(weft_modules):
    holds(size_violations(weft_modules))


def test_the_package_does_not_grow(weft_modules):
    holds(total_violations(weft_modules, MOST_LINES))


def test_no_bare_except_and_no_print(weft_modules):
    holds(habit_violations(weft_modules))


def test_every_file_says_what_it_is(weft_modules):
    holds(docstring_violations(weft_modules))


def test_facts_about_operators_stand_with_the_operator(weft_modules):
    import weft.ops  # fills the table

    found = list(operator_sets(weft_modules, {name for _, name in weft.graph.opspec.operators()}))
    holds(
        [
            f"{module.name}:{line} lists {names}: a fact about operators is a trait (Trait in weft/graph/opspec.py)"
            for module, line, names in found
            if (module.name, names) not in PATTERNS
        ]
    )
    holds([f"{name} does not list {names} any more" for name, names in PATTERNS - {(m.name, n) for m, _, n in found}])


def test_numbers_that_choose_stand_in_a_model(weft_modules):
    holds(number_violations(weft_modules, FACTS))


def test_every_folder_is_a_package(weft_modules):
    """setuptools and mypy find more surprises in folders without an __init__.py than anyone needs."""
    folders = {module.path.parent for module in weft_modules.values()}
    holds(
        [
            f"{folder.relative_to(ROOT)} has no __init__.py"
            for folder in folders
            if not (folder / "__init__.py").exists()
        ]
    )
