"""Every option of every command, for every kind of model: obeyed, or refused with a sentence.

KINDS = ("onnx", "built_in", "weft")

`TABLE` has a row for each option: the words, what shows that they were obeyed, and for which kinds of model they are
refused instead. An option without a row fails, so that none can be added that does nothing.
"""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from weft import models
from weft.cli import (
    bench_command,
    bugreport_command,
    compare_command,
    profile_command,
    quantize_command,
    sources,
    tune_command,
)
from weft.cli.main import COMMANDS, main, make_parser
from weft.core.knobs import knobs
from weft.models.builder import Builder

onnx = pytest.importorskip("onnx")

KINDS = ("onnx", "weft", "built-in")
HERE = "native,cores=1"
COMPILED, ITSELF, FIXED = "is compiled already", "only built-in models take it", "all sizes of the model are fixed"
# What a command cannot do with a module file at all, whatever the options.
NOT_COMPILED = dict.fromkeys(("compile", "inspect", "explore", "bugreport", "compare", "quantize", "tune"), COMPILED)
NOT_COMPILED["profile"] = "profile the .onnx file"


def little(batch=1, seed=0):
    """A built-in model of two products."""
    b = Builder("little", seed)
    return b.finish(b.linear(b.relu(b.linear(b.input("x", (batch, 4)), 4, 4)), 4, 3))


class Row(SimpleNamespace):
    """One option: its words, what shows that they were obeyed, and the kinds that refuse them (all others obey)."""


def row(words, obeyed, **refused):
    return Row(words=words.split(), obeyed=obeyed, refused={kind.replace("_", "-"): t for kind, t in refused.items()})


def asked(**wanted):
    """The compiler was asked for this, each time."""
    return lambda seen: seen.compiled and all({key: one[key] for key in wanted} == wanted for one in seen.compiled)


def tuned(**wanted):
    """The tuner was asked for this."""
    return lambda seen: {key: getattr(seen.tuned, key) for key in wanted} == wanted


def tuned_shape(seen):
    return seen.tuned.graph.inputs[0].tensor.static == (2, 4)


def fed(seen):
    return seen.out["inputs"]["x"]


def written(ending):
    return lambda seen: (seen.folder / f"made{ending}").stat().st_size > 0


SIZED = {"weft": FIXED, "built_in": FIXED}
SHAPED = {"weft": "x", "built_in": "input 'x'"}
MODEL = {
    "--size": row("--size N=2", asked(shapes={"x": (2, 4)}), **SIZED),
    "--shape": row("--shape x=2,4", asked(shapes={"x": (2, 4)}), **SHAPED),
    "--batch": row("--batch 2", asked(shapes={"x": (2, 4)}), onnx=ITSELF, weft=COMPILED),
}
COMPILING = {
    "--target": row(f"--target {HERE}", asked(target=HERE), weft=COMPILED),
    "--precision": row("--precision bf16", asked(precision="bf16"), weft=COMPILED),
    "--exact": row("--exact", asked(exact=True), weft=COMPILED),
}
THREADS = {"--threads": row("--threads 1", lambda seen: seen.threads == {1})}
INPUTS = {
    "--input": row("--input x=zeros", lambda seen: fed(seen)["max"] == 0),
    "--seed": row("--seed 7", lambda seen: fed(seen)["first"] == first_of_seed(7)),
}
ALONE = dict.fromkeys(("onnx", "weft", "built_in"), "makes a key and nothing else")
NO_MODULE = {"onnx": "no Weft module", "built_in": "No such file"}
TABLE = {
    "compile": {
        **MODEL, **COMPILING,
        "--output": row("-o {folder}/made.weft", written(".weft")),
        "--report": row("--report", lambda seen: "kernel" in seen.out["report"]),
    },
    "run": {
        **MODEL, **COMPILING, **THREADS, **INPUTS,
        "--output": row("-o {folder}/made.npy", written(".npy")),
    },
    "bench": {
        **MODEL, **COMPILING, **THREADS, **INPUTS,
        "--against": row(
            "--against interpreter", lambda seen: seen.out["comparison"]["against"] == "interpreter",
            weft="--against needs the model itself",
        ),
        "--seconds": row("--seconds 0.1", lambda seen: 0.1 <= seen.out["machine"]["measured_s"] < 10),
        "--decode": row("--decode 4", None, **dict.fromkeys(KINDS, "--decode measures the built-in llama_110m")),
        "--prompt": row("--prompt 4", None, **dict.fromkeys(KINDS, "--prompt: it belongs to --decode")),
        "--weights": row("--weights int4", None, **dict.fromkeys(KINDS, "--weights: it belongs to --decode")),
    },
    "profile": {
        **MODEL, **COMPILING, **THREADS,
        "--input": row("--input x=zeros", lambda seen: seen.profiled["x"].max() == 0),
        "--seed": row("--seed 7", lambda seen: seen.profiled["x"].reshape(-1)[:8].tolist() == first_of_seed(7)),
        "--seconds": row("--seconds 0.02", lambda seen: seen.profile_seconds == 0.02),
        "--top": row("--top 1", None, onnx="--top: --json has all kernels", built_in="--top: --json has all kernels"),
        "--trace": row("--trace {folder}/made.json", written(".json")),
    },
    "inspect": {
        "--size": row("--size N=2", lambda seen: "float32[2, 4]" in seen.out["graph"], **SIZED),
        "--shape": row("--shape x=2,4", lambda seen: "float32[2, 4]" in seen.out["graph"], **SHAPED),
        "--batch": row("--batch 2", lambda seen: "float32[2, 4]" in seen.out["graph"], onnx=ITSELF),
        "--target": row(f"--stage loops --target {HERE}", asked(target=HERE)),
        "--precision": row("--stage loops --precision bf16", asked(precision="bf16")),
        "--exact": row("--stage loops --exact", asked(exact=True)),
        "--input": row("--stage loops --input x=[[1,2,3,4],[1,2,3,4]]", asked(shapes={"x": (2, 4)}),
                       built_in="input 'x'"),
        # Values matter only to models whose shapes depend on them, which this one's do not: what is asked is taken.
        "--seed": row("--stage loops --seed 7", asked(target="auto")),
        "--stage": row("--stage llvm", lambda seen: "define " in seen.out["kernels"][0]["llvm"]),
        "--kernel": row("--stage loops --kernel 0", lambda seen: len(seen.out["kernels"]) == 1),
        "--hash": row("--hash", lambda seen: len(seen.out["hash"]) == 32),
        "--print-after": row("--print-after all", lambda seen: all("graph " in p["graph"] for p in seen.out["passes"])),
    },
    "explore": {
        **MODEL, **COMPILING,
        "--threads": row("--threads 1 --seconds 0.01", lambda seen: seen.threads == {1}),
        "--input": row("--seconds 0.01 --input x=zeros", lambda seen: seen.profiled["x"].max() == 0),
        "--seed": row("--seconds 0.01 --seed 7",
                      lambda seen: seen.profiled["x"].reshape(-1)[:8].tolist() == first_of_seed(7)),
        "--seconds": row("--seconds 0.02", lambda seen: seen.profile_seconds == 0.02),
        "--no-times": row("--no-times", lambda seen: seen.profiled is None),
        "--output": row("-o {folder}/made.html --no-times", written(".html")),
    },
    "bugreport": {
        **MODEL, **COMPILING, **THREADS,
        "--shape": row("--shape x=2,4", lambda seen: "Compiled and run" in seen.out["parts"]),
        "--input": row("--input x=zeros", lambda seen: "Compiled and run" in seen.out["parts"]),
        "--seed": row("--seed 7", lambda seen: "Compiled and run" in seen.out["parts"]),
        "--output": row("-o {folder}/made.txt", written(".txt")),
    },
    "compare": {
        **MODEL, **COMPILING, **THREADS,
        "--input": row("--input x=zeros", lambda seen: seen.fed["x"].max() == 0),
        "--seed": row("--seed 7", lambda seen: seen.fed["x"].reshape(-1)[:8].tolist() == first_of_seed(7)),
        "--against": row("--against interpreter", lambda seen: seen.out["same"]),
        "--engine": row("--engine interpreter --against ort", lambda seen: seen.out["same"] and not seen.compiled),
        "--alone": row("--alone", lambda seen: len(seen.compiled) > 2),
        "--tolerance": row("--tolerance 0.5", lambda seen: seen.out["tolerance"] == 0.5),
        "--all": row("--all", None, onnx="--all: --json has all values", built_in="--all: --json has all values"),
    },
    "quantize": {
        "--size": row("--size N=2", lambda seen: seen.calls[0]["x"].shape == (2, 4), built_in=FIXED),
        "--shape": row("--shape x=2,4", lambda seen: seen.calls[0]["x"].shape == (2, 4), built_in="input 'x'"),
        "--batch": row("--batch 2", lambda seen: seen.calls[0]["x"].shape == (2, 4), onnx=ITSELF),
        "--data": row("--data {folder}/data.npy", lambda seen: len(seen.calls) == 2 + 5),
        "--random": row("--random 3", lambda seen: len(seen.calls) == 3),
        "--output": row("-o {folder}/made.onnx", written(".onnx")),
        "--method": row("--method minmax", lambda seen: seen.quantized["method"] == "minmax"),
        "--activations": row("--activations int8", lambda seen: seen.quantized["activations"] == "int8"),
        "--bits": row("--bits 2 1", lambda seen: seen.quantized["bits"] == (2, 1), onnx="none can be of bits"),
        "--keep": row("--keep nothing", None, onnx="keep names ['nothing']", built_in="keep names ['nothing']"),
        "--target": row(f"--target {HERE}", lambda seen: seen.quantized["target"] == HERE),
    },
    "tune": {
        "--size": row("--size N=2", tuned_shape, **SIZED),
        "--shape": row("--shape x=2,4", tuned_shape, **SHAPED),
        "--batch": row("--batch 2", tuned_shape, onnx=ITSELF),
        "--target": row(f"--target {HERE}", lambda seen: seen.tuned.target.name == HERE),
        "--precision": row("--precision bf16", tuned(precision="bf16")),
        "--exact": row("--exact", lambda seen: seen.was_exact),
        "--threads": row("--threads 1", tuned(threads=1)),
        "--budget": row("--budget 2m", tuned(budget=120.0)),
        "--trials": row("--trials 3", tuned(most=3)),
        "--cost-model": row("--cost-model analytic", tuned(model="analytic")),
        "--explorer": row("--explorer genetic", tuned(explorer="genetic")),
        "--seed": row("--seed 7", tuned(seed=7)),
        "--report": row("--report {folder}/made.html", written(".html")),
        "--exhaustive": row("--exhaustive nothing", None, onnx="no task is called", built_in="no task is called"),
        "--points": row("--points 3", None, onnx="goes with --exhaustive", built_in="goes with --exhaustive"),
    },
    "db": {},
    "cache": {},
    "export": {
        **MODEL, **COMPILING,
        "--size": row("--size N=2", asked(shapes={"x": (2, 4)}), weft=COMPILED, built_in=FIXED),
        "--shape": row("--shape x=2,4", asked(shapes={"x": (2, 4)}), weft=COMPILED, built_in="input 'x'"),
        "--format": row("--format onnx", lambda seen: seen.out["format"] == "onnx", weft=COMPILED),
        "--weights": row("--weights beside", None, **dict.fromkeys(KINDS, "--weights: a compiled module holds")),
        "--output": row("-o {folder}/made.weft", written(".weft")),
    },
    "sign": {
        "--key": row("--key {folder}/team.key", lambda seen: len(seen.out["signed"]) == 1, **NO_MODULE),
        "--check": row("--check --key {folder}/other.key", None, weft="signed", **NO_MODULE),
        "--new-key": row("--new-key {folder}/x.key", None, **ALONE),
    },
    "diff": {},
    "devices": {},
    "pool": {},
    "worker": {},
    "doctor": {},
}  # fmt: skip
BASE = {
    "bench": "--seconds 0.01",
    "profile": "--seconds 0.01",
    "explore": "--no-times",
    "compare": "--against interpreter",
    "quantize": "--random 2",
}
EVERYWHERE = {"--help", "--debug", "--json"}
POOL = {"--pool", "--certificates"}
OF_NO_MODEL = {
    "doctor": {"--calibrate"}, "db": {"--database", "--target", "--best", "--failures"},
    "bench": POOL, "compile": POOL, "tune": POOL, "devices": POOL,
    "pool": {"--certificates", "--host", "--port", "--builders", "--target", "--output"},
    "worker": {"--join", "--kind", "--device", "--target", "--key", "--name", "--certificates"},
}  # fmt: skip
"""Tested by `test_doctor_measures_a_core`, and in tests/tuner/test_commands.py and tests/pool."""


def options_of(command):
    choices = next(one.choices for one in make_parser([command])._actions if one.dest == "command")
    return [action.option_strings[-1] for action in choices[command]._actions if action.option_strings]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_a_row(command):
    found = {*options_of(command)} - EVERYWHERE - OF_NO_MODEL.get(command, set())
    assert found == set(TABLE[command]), "an option is missing in TABLE, or gone"
    assert "--json" in options_of(command), "every command prints figures as JSON"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The model in the three kinds, in a folder with calibration data: five calls, stacked."""
    from tests.cli.tiny import write_tiny

    folder = tmp_path_factory.mktemp("options")
    write_tiny(folder / "tiny.onnx")
    assert main(["compile", str(folder / "tiny.onnx"), "-o", str(folder / "saved.weft")]) == 0
    for name in ("team", "other"):
        assert main(["sign", "--new-key", str(folder / f"{name}.key")]) == 0
    np.save(folder / "data.npy", np.random.default_rng(0).standard_normal((5, 1, 4), "float32"))
    return folder


def first_of_seed(seed):
    from weft.compiler.reports.inputs import random_array

    return random_array("float32", (1, 4), np.random.default_rng(seed)).reshape(-1).tolist()


KEPT = {}
"""Modules by what they were compiled from and for: many rows ask for the same."""


@pytest.fixture
def seen(monkeypatch, files):
    """What commands ask of the compiler, and the rest of Weft, while they run."""
    found = SimpleNamespace(compiled=[], threads=set(), folder=files, calls=[])
    real, load, quantize = sources.compile, sources.load, quantize_command.quantize

    def compile(graph, target, shapes, precision, threads, exact):
        shapes = {name: tuple(shape) for name, shape in shapes.items()}
        found.compiled.append({"target": target, "shapes": shapes, "precision": precision, "exact": exact})
        found.threads.add(threads)
        key = (repr(graph), target, str(shapes), precision, threads, exact, knobs.cache)
        if key not in KEPT:
            KEPT[key] = real(graph, target, shapes, precision, threads, exact)
        module = KEPT[key]
        found.profiled = found.profile_seconds = None

        def profile(feeds, **given):
            found.profiled, found.profile_seconds = feeds, given["seconds"]
            return type(module).profile(module, feeds, **given)

        monkeypatch.setattr(module, "profile", profile, raising=False)
        return module

    def take(path, threads=None):
        found.threads.add(threads)
        return load(path, threads)

    def shrink(graph, feeds, **given):
        found.calls, found.quantized = list(feeds), given
        return quantize(graph, feeds, **given)

    def feed(*given):
        found.fed = sources.make_feeds(*given)
        return found.fed

    make_tuning = tune_command.make_tuning

    def tuning(*given, **more):
        found.tuned = make_tuning(*given, **more)
        found.was_exact = knobs.exact
        monkeypatch.setattr(found.tuned, "run", lambda view: None)
        monkeypatch.setattr(found.tuned, "prepare", lambda: None)
        return found.tuned

    monkeypatch.setattr(tune_command, "make_tuning", tuning)
    for where in (sources, compare_command):
        monkeypatch.setattr(where, "compile", compile)
    monkeypatch.setattr(sources, "load", take)
    monkeypatch.setattr(quantize_command, "quantize", shrink)
    monkeypatch.setattr(compare_command, "make_feeds", feed)
    monkeypatch.setattr(bugreport_command, "CHECKS", ())  # tested by itself
    monkeypatch.setattr(bench_command, "SETTLE_SECONDS", 0.0)
    monkeypatch.setitem(models.MODELS, "little", little)
    monkeypatch.chdir(files)
    return found


CELLS = [(command, option, kind) for command, rows in TABLE.items() for option in rows for kind in KINDS]


@pytest.mark.thin(2)
@pytest.mark.parametrize(("command", "option", "kind"), CELLS, ids=[" ".join(cell) for cell in CELLS])
def test_an_option_is_obeyed_or_refused(command, option, kind, seen, files, capsys):
    cell = TABLE[command][option]
    model = {"onnx": files / "tiny.onnx", "weft": files / "saved.weft", "built-in": "little"}[kind]
    words = [word.format(folder=files) for word in cell.words]
    base = [] if command == "explore" and "--seconds" in words else BASE.get(command, "").split()
    base = base if base[:1] != words[:1] else []
    code = main([command, str(model), *base, *words, "--json"])
    shown = capsys.readouterr()
    if kind == "weft" and command in NOT_COMPILED:
        allowed = {COMPILED, NOT_COMPILED[command], *cell.refused.values()}
        assert code == 1 and any(text in shown.err for text in allowed) and "Traceback" not in shown.err
    elif kind in cell.refused:
        assert code == 1 and shown.out == "" and cell.refused[kind] in shown.err
        assert shown.err.splitlines()[-1].startswith("weft: ") and "Traceback" not in shown.err
    else:
        assert code == 0, shown.err
        seen.out = json.loads(shown.out)
        assert cell.obeyed(seen)


def test_an_option_that_nobody_looks_at_is_an_error(monkeypatch, capsys, files):
    """The net under the table: a command that takes an option and never reads it cannot end well."""
    add = sources.add_inputs
    monkeypatch.setattr(profile_command, "add_inputs", lambda parser: (add(parser), parser.add_argument("--speed")))
    words = ["profile", str(files / "tiny.onnx"), "--seconds", "0.01"]
    assert main(words) == 0
    assert main([*words, "--speed", "high"]) == 1
    assert "weft profile did nothing with --speed" in capsys.readouterr().err


# What follows from two options together, and from what they name.


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("compile tiny.onnx -o x.so", "weft export tiny.onnx --format so -o FOLDER"),
        ("compile tiny.onnx -o x.onnx", "ends in .weft"),
        ("export tiny.onnx -o x.so", "weft export tiny.onnx --format so -o FOLDER"),
        ("export tiny.onnx --format so -o x.so", "into a folder"),
        ("export tiny.onnx --format c --target native -o folder", "the target is c"),
        ("export tiny.onnx --format onnx -o x.weft", "ends in .onnx"),
        ("export tiny.onnx --format onnx --precision bf16", "--precision: ONNX holds the model as it is"),
        ("export tiny.onnx --format onnx --size N=2", "--size: ONNX holds the model as it is"),
        ("quantize tiny.onnx --random 1 -o x.weft", "ends in .onnx"),
        ("compare tiny.onnx --engine interpreter --precision bf16", "--precision: --engine interpreter"),
        ("compare tiny.onnx --engine interpreter --against interpreter", "compares a thing with itself"),
        ("inspect tiny.onnx --precision bf16", "--precision: the stage graph"),
        ("explore tiny.onnx --no-times --seconds 1", "--seconds: --no-times measures nothing"),
        ("inspect tiny.onnx --kernel 0", "--kernel: the stage graph"),
        ("inspect tiny.onnx --stage fused --kernel 0", "--kernel: the stage fused"),
    ],
)
def test_options_that_do_not_go_together_are_refused(seen, capsys, words, text):
    before = set(seen.folder.iterdir())
    assert main(words.split()) == 1
    shown = capsys.readouterr()
    assert text in shown.err and shown.out == "" and set(seen.folder.iterdir()) == before


@pytest.mark.parametrize(
    "words",
    [
        "run tiny.onnx --threads 0",
        "run tiny.onnx --threads -1",
        "run little --batch 0",
        "bench tiny.onnx --seconds 0",
        "bench tiny.onnx --seconds nan",
        "compare tiny.onnx --tolerance -1",
        "compare tiny.onnx --tolerance much",
        "quantize tiny.onnx --random 0",
        "compile tiny.onnx --threads 2",
        "inspect tiny.onnx --threads 2",
        "export tiny.onnx --threads 2",
    ],
)
def test_numbers_that_make_no_sense_and_unknown_options_are_refused(seen, capsys, words):
    with pytest.raises(SystemExit) as end:
        main(words.split())
    option = words.split()[2]
    assert end.value.code == 2 and option in capsys.readouterr().err


def test_a_folder_does_not_hide_a_built_in_model(seen, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "little").mkdir()
    assert main(["run", "little"]) == 0


def test_export_takes_the_form_that_the_file_ends_in(seen, capsys):
    assert main(["export", "little", "-o", "by_name.onnx", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "onnx"
    onnx.checker.check_model(onnx.load("by_name.onnx"))


def test_the_tolerance_of_a_comparison_follows_the_precision(seen, capsys):
    words = ["compare", "tiny.onnx", "--against", "interpreter", "--precision", "bf16", "--json"]
    assert main(words) == 0
    made = json.loads(capsys.readouterr().out)
    worst = max(one["error"] for one in made["values"])
    assert made["same"] and 1e-4 < worst < made["tolerance"], "the model is right, and not in the digits of float32"
    assert main([*words, "--tolerance", "1e-4"]) == 1
