"""Every command, in this process: what it prints, what it writes, and its exit code."""

import json
import platform
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from weft.cli import bench_command, doctor_command
from weft.cli.main import COMMANDS, main
from weft.core.knobs import knobs
from weft.core.version import VERSION
from weft.graph.opspec import find_operator
from weft.targets.cpu import calibrate
from weft.targets.cpu.parse import native
from weft.targets.registry import look_again

onnx = pytest.importorskip("onnx")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tiny(tmp_path):
    from tests.cli.tiny import write_tiny

    path = tmp_path / "tiny.onnx"
    return path, write_tiny(path)


@pytest.fixture
def weft(capsys):
    """A function that runs the program: exit code, stdout, stderr."""

    def call(*words):
        code = main([str(word) for word in words])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


def figures(outcome):
    code, out, err = outcome
    assert code == 0, err
    return json.loads(out)


# The program itself.


def test_help_names_every_command(weft):
    code, out, _ = weft()
    assert code == 0 and all(name in out for name in COMMANDS)


def test_the_module_runs_as_a_program():
    done = subprocess.run([sys.executable, "-m", "weft", "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.strip() == f"weft {VERSION}"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0 and "--debug" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["run", "missing.onnx"], "there is no file 'missing.onnx'"),
        (["run", "missing.weft"], "there is no file 'missing.weft'"),
        (["run", "{tiny}", "--input", "z=random"], "the model has the inputs x"),
        (["run", "{tiny}", "--input", "x=nowhere.npy"], "nowhere.npy cannot be read"),
        (["run", "{tiny}", "--input", "x=hello"], "neither random, zeros, a .npy file, nor numbers"),
        (["run", "{tiny}", "--input", "x"], "--input takes NAME="),
        (["run", "{tiny}", "--size", "M=3"], "no input has a size named M"),
        (["run", "{tiny}", "--shape", "x=1,four"], "whole numbers"),
        (["run", "{tiny}", "--shape", "z=1,4"], "the model has the inputs x"),
        (["run", "{tiny}", "-o", "out.txt"], "end in .npz or .npy"),
        (["run", "{tiny}", "--target", "abacus"], "unknown target 'abacus'"),
        (["inspect", "{tiny}", "--stage", "loops", "--kernel", "nothing"], "no kernel is called 'nothing'"),
        (["bench", "x.weft", "--against", "ort"], "--against needs the model itself"),
        (["inspect", "x.weft"], "there is no file 'x.weft'"),
        (["run", "{tiny}", "--size", "N=2", "--size", "N=3"], "--size gives N twice"),
        (["run", "{tiny}", "--size", "N=2,3"], "one whole number"),
        (["run", "{tiny}", "--size", "N=2", "--shape", "x=3,4"], "--size N=2: the shape of 'x' has 3 there"),
        (["run", "{tiny}", "--shape", "x=3,4", "--input", "x=[[1,2,3,4]]"], "gives has the shape [1, 4]"),
        (["run", "{tiny}", "--seed", "1", "--input", "x=zeros"], "--seed: no input is random"),
    ],
)
def test_errors_are_one_clear_line(weft, tiny, words, text):
    code, out, err = weft(*[str(tiny[0]) if word == "{tiny}" else word for word in words])
    last = next(line for line in err.splitlines() if line.startswith("weft: "))
    assert code == 1 and text in last and "Traceback" not in err and out == ""


def test_a_damaged_file_is_refused(weft, tmp_path):
    path = tmp_path / "damaged.onnx"
    path.write_bytes(b"\x08\x07 this is not a model")
    code, _, err = weft("run", path)
    assert code == 1 and err.startswith("weft: ")


@pytest.fixture
def quiet_again(monkeypatch):
    """Ends what WEFT_DEBUG began: the environment is looked at when a knob is, and nobody looks any more."""
    yield
    monkeypatch.undo()
    knobs.reset("debug")


def test_debug_shows_where_an_error_comes_from(quiet_again, monkeypatch):
    with pytest.raises(ValueError, match="there is no file"):
        main(["run", "missing.onnx", "--debug"])
    monkeypatch.setenv("WEFT_DEBUG", "1")
    with pytest.raises(ValueError, match="there is no file"):
        main(["run", "missing.onnx"])
    monkeypatch.setenv("WEFT_DEBUG", "much")
    assert main(["run", "missing.onnx"]) == 1


def test_debug_prints_the_log(weft, tiny, quiet_again, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", "0")
    assert "compiled tiny" not in weft("run", tiny[0])[2]
    for words, level in ((["--debug"], "0"), ([], "1")):
        monkeypatch.setenv("WEFT_DEBUG", level)
        code, _, err = weft("run", tiny[0], *words)
        assert code == 0 and "weft.compiler: compiled tiny for {'x': (1, 4)}" in err


# Commands.


def test_run_gives_the_models_answer(weft, tiny, tmp_path):
    from tests.cli.tiny import tiny_meaning

    path, weights = tiny
    x = np.random.default_rng(1).standard_normal((5, 4), "float32")
    np.save(tmp_path / "x.npy", x)
    code, out, err = weft("run", path, "--input", f"x={tmp_path / 'x.npy'}", "-o", tmp_path / "y.npz")
    assert code == 0 and "float32[5, 3]" in out, err
    np.testing.assert_allclose(np.load(tmp_path / "y.npz")["y"], tiny_meaning(x, weights), rtol=1e-4)


def test_run_in_figures(weft, tiny):
    made = figures(weft("run", tiny[0], "--size", "N=2", "--input", "x=zeros", "--json"))
    assert made["inputs"]["x"]["max"] == 0 and made["outputs"]["y"]["shape"] == [2, 3]
    assert len(made["outputs"]["y"]["first"]) == 6


def test_sizes_that_nobody_gave_are_said(weft, tiny):
    code, _, err = weft("run", tiny[0])
    assert code == 0 and "N=1" in err and "--size" in err


def test_numbers_may_stand_in_the_command_line(weft, tiny):
    made = figures(weft("run", tiny[0], "--input", "x=[[1,2,3,4]]", "--json"))
    assert made["inputs"]["x"]["first"] == [1, 2, 3, 4]


def test_compile_then_run_the_file(weft, tiny, tmp_path):
    path, module = tiny[0], tmp_path / "tiny.weft"
    made = figures(weft("compile", path, "--size", "N=2", "-o", module, "--json"))
    assert made["file"] == str(module) and made["bytes"] == module.stat().st_size and made["kernels"] >= 1
    ran = figures(weft("run", module, "--json"))
    direct = figures(weft("run", path, "--size", "N=2", "--json"))
    assert ran["outputs"]["y"]["first"] == pytest.approx(direct["outputs"]["y"]["first"])


def test_compile_for_several_machines(weft, tiny, tmp_path):
    module = tmp_path / "tiny.weft"
    plain = f"{platform.machine()}-unknown-linux-gnu"
    code, out, _ = weft("compile", tiny[0], "--size", "N=2", "--target", f"{plain},cores=2,native", "-o", module)
    assert code == 0 and "it runs with numpy alone" in out
    with zipfile.ZipFile(module) as archive:
        parts = json.loads(archive.read("manifest.json"))["parts"]
    assert [part["target"]["name"] for part in parts] == [f"{plain},cores=2", "native"]
    assert figures(weft("run", module, "--json"))["target"] == "native"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--target", "native,native"), "--target names native twice"),
        (("--target", "native,wasm32-unknown-unknown"), "`weft export --format wasm` writes that"),
        (("-o", "{}/none/tiny.weft"), "there is no folder {}/none"),
    ],
)
def test_compile_says_what_it_does_not_write(weft, tiny, tmp_path, words, said):
    code, _, error = weft("compile", tiny[0], "-o", tmp_path / "tiny.weft", *(one.format(tmp_path) for one in words))
    assert code == 1 and said.format(tmp_path) in error and not list(tmp_path.glob("*.weft"))


def test_a_target_that_is_empty_is_none(weft, tiny):
    with pytest.raises(SystemExit):
        weft("compile", tiny[0], "--target", "")


@pytest.fixture
def hurried(monkeypatch):
    """No pauses between the samples of `weft bench`: who is faster is no matter here."""
    monkeypatch.setattr(bench_command, "SETTLE_SECONDS", 0.0)


def test_bench(weft, tiny, hurried):
    made = figures(weft("bench", tiny[0], "--against", "interpreter", "--seconds", "0.05", "--json"))
    assert set(made["times"]) == {"weft", "interpreter"} and made["error"] < 1e-5
    assert made["times"]["weft"]["samples"] >= bench_command.ENOUGH_ROUNDS and made["times"]["weft"]["spread"] >= 0
    found = made["comparison"]
    assert found["ratio_lower_quartile"] <= found["ratio_median"] <= found["ratio_upper_quartile"]
    assert (found["speed_ratio"] is None) == (found["no_conclusion"] is not None)
    assert made["machine"]["cores"] >= 1


def test_bench_against_onnxruntime(weft, tiny, hurried):
    pytest.importorskip("onnxruntime")
    code, out, _ = weft("bench", tiny[0], "--against", "ort", "--seconds", "0.05")
    assert code == 0 and ("times as fast as ort" in out or "no conclusion: " in out)
    assert "outputs differ by" in out and "spread" in out


QUIET = {"cores": 8, "load_average": 0.1, "cores_used_by_others": 0.1}


@pytest.mark.parametrize(
    ("ours", "theirs", "machine", "why"),
    [
        ([1.0, 1.1, 1.2] * 10, [2.0, 2.1, 2.2] * 10, QUIET, None),
        ([2.0, 2.1, 2.2] * 10, [1.0, 1.1, 1.2] * 10, QUIET, None),
        ([1.0, 1.1, 1.2, 1.3, 1.4], [450.0, 451.0, 452.0, 453.0, 454.0], QUIET, "5 samples are too few"),
        ([1.0, 1.5, 2.0] * 10, [1.2, 1.7, 2.2] * 10, QUIET, "overlap"),
        ([1.0, 1.1] * 10, [2.0, 2.1] * 10, QUIET | {"cores_used_by_others": 7.0}, "other programs used 7.0 of its 8"),
        ([1.0, 1.1] * 10, [2.0, 2.1] * 10, QUIET | {"cores_used_by_others": 5.9}, None),
        ([1.0, 1.1] * 10, [2.0, 2.1] * 10, QUIET | {"cores_used_by_others": None, "load_average": 12.0}, "busy"),
        ([1.0, 1.1] * 10, [2.0, 2.1] * 10, QUIET | {"cores_used_by_others": None, "load_average": None}, None),
    ],
)
def test_bench_concludes_only_from_what_it_can(ours, theirs, machine, why):
    found = bench_command.compare({"weft": ours, "ort": theirs}, "ort", 2, machine)
    if why is None:
        assert found["no_conclusion"] is None and found["speed_ratio"] == found["ratio_median"]
    else:
        assert found["speed_ratio"] is None and why in found["no_conclusion"]


def test_bench_measures_on_until_there_are_enough_rounds():
    goes_on = bench_command._goes_on
    assert goes_on(5, 3.1, 3.0, True) and not goes_on(bench_command.ENOUGH_ROUNDS, 3.1, 3.0, True)
    assert not goes_on(5, 3.1, 3.0, False) and not goes_on(5, 31.0, 3.0, True) and goes_on(4, 31.0, 3.0, True)


def test_what_other_programs_use_is_counted():
    before, after = bench_command.Usage(10.0, 100.0, 1.0), bench_command.Usage(12.0, 105.0, 3.0)
    assert after.since(before)["cores_used_by_others"] == pytest.approx(1.5)
    assert bench_command.Usage(12.0, None, 3.0).since(before)["cores_used_by_others"] is None


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        ("graph", "MatMul(%x, %w)"),
        ("fused", "Softmax fourth"),
        ("te", "te.sum(in0[i, k] * in1[k, j], axis=[k])"),
        ("te", "for i0 in range(4):"),
        ("schedule", "s.apply("),
        ("loops", "for "),
        ("lowered", "func "),
        ("llvm", "define "),
        ("asm", ".text"),
    ],
)
def test_inspect_shows_every_stage(weft, tiny, stage, text):
    code, out, err = weft("inspect", tiny[0], "--size", "N=4", "--stage", stage)
    assert code == 0 and text in out, err


def test_inspect_prints_the_graph_after_a_pass(weft, tiny):
    code, _, err = weft("inspect", tiny[0], "--print-after", "nothing")
    changed = err.split("those that did: ")[1].split()[0].strip(",.")
    found = figures(weft("inspect", tiny[0], "--print-after", changed, "--json"))["passes"]
    assert code != 0 and found and {one["pass"] for one in found} == {changed} and all(one["why"] for one in found)
    code, out, _ = weft("inspect", tiny[0], "--print-after", "all")
    assert code == 0 and f"# after {changed}: " in out


def test_inspect_one_kernel(weft, tiny):
    every = figures(weft("inspect", tiny[0], "--stage", "loops", "--json"))["kernels"]
    one = figures(weft("inspect", tiny[0], "--stage", "loops", "--kernel", "0", "--json"))["kernels"]
    named = figures(weft("inspect", tiny[0], "--stage", "loops", "--kernel", every[0]["kernel"], "--json"))["kernels"]
    assert one == named == every[:1]


def test_compare_agrees(weft, tiny):
    pytest.importorskip("onnxruntime")
    made = figures(weft("compare", tiny[0], "--size", "N=3", "--json"))
    assert made["same"] and made["compared"] == 4 and made["first_difference"] is None
    assert [row["value"] for row in made["values"]] == ["product", "sum", "positive", "y"]


def test_compare_with_the_interpreter(weft, tiny):
    code, out, _ = weft("compare", tiny[0], "--against", "interpreter", "--all")
    assert code == 0 and "third" in out and "4 values compared" in out


def test_compare_names_the_first_node_that_differs(weft, tiny, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(find_operator("Relu"), "evaluate", lambda c, x: np.abs(x))
    words = ["compare", tiny[0], "--engine", "interpreter", "--size", "N=8"]
    code, out, _ = weft(*words)
    assert code == 1 and "the first difference: node 'third'" in out and "the node itself is wrong" in out
    code, out, _ = weft(*words, "--json")
    first = json.loads(out)["first_difference"]
    assert code == 1 and first["node"] == "third" and first["error"] == pytest.approx(first["error_alone"])


def test_compare_node_by_node_alone(weft, tiny, monkeypatch):
    pytest.importorskip("onnxruntime")
    words = ["compare", tiny[0], "--alone", "--size", "N=8", "--json"]
    assert figures(weft(*words))["compared"] == 4
    monkeypatch.setattr(find_operator("Relu"), "evaluate", lambda c, x: np.abs(x))
    code, out, _ = weft(*words, "--engine", "interpreter")
    wrong = [row["node"] for row in json.loads(out)["values"] if row["error"] > 1e-4]
    assert code == 1 and wrong == ["third"], "what comes after it is right when it gets right inputs"


def test_export_as_onnx(weft, tmp_path):
    path = tmp_path / "dqn.onnx"
    code, out, _ = weft("export", "dqn", "--format", "onnx", "-o", path)
    assert code == 0 and str(path) in out
    onnx.checker.check_model(onnx.load(path))


def test_export_as_a_library(weft, tmp_path):
    folder = tmp_path / "library"
    code, out, complaint = weft("export", "dqn", "--format", "so", "-o", folder)
    if "no linker" in complaint:
        pytest.skip("no linker on this machine")
    assert code == 0 and all(str(folder / name) in out for name in ("libdqn.so", "dqn.h", "main.c"))
    assert {path.name for path in folder.iterdir()} == {"libdqn.so", "dqn.h", "main.c"}


def test_export_for_another_machine(weft, tmp_path):
    folder = tmp_path / "page"
    code, out, complaint = weft("export", "dqn", "--format", "wasm", "--weights", "beside", "-o", folder)
    if "no cc" in complaint:
        pytest.skip("no linker on this machine")
    names = {"dqn.wasm", "dqn.bin", "dqn.js", "dqn.d.ts", "main.mjs", "package.json"}
    assert code == 0 and {path.name for path in folder.iterdir()} == names and "dqn.wasm" in out


def test_devices(weft):
    made = figures(weft("devices", "--json"))
    assert made["devices"][0]["cores"] >= 1 and any("native" in form for form in made["targets"])
    assert any("cores=8" in form for form in made["targets"]), "the example of another machine is one that works"
    kinds = [device["kind"] for device in made["devices"]]
    for kind in ("cuda", "opencl"):
        assert any(form.startswith(f"{kind}:0") for form in made["targets"]) == (kind in kinds), "only what exists"
    assert weft("devices")[0] == 0


def test_doctor(weft):
    code, out, _ = weft("doctor")
    assert code == 0 and "Weft is ready" in out
    made = figures(weft("doctor", "--json"))
    found = {one["what"]: one for one in made["findings"]}
    assert made["healthy"] and found["self-test"]["state"] == "ok" and found["numpy"]["detail"] == np.__version__
    assert found["weft"]["detail"].startswith(VERSION)
    assert all(one["mend"] for one in made["findings"] if one["state"] == "missing")


def test_doctor_lists_what_exists_and_only_that(weft):
    """Every extra is a line of the doctor's and the other way round; each has code of ours behind it."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"]) - {"all", "bench", "test", "dev", "hardware", "native"}
    assert extras == set(doctor_command.EXTRAS)
    small = [
        name for name in doctor_command.EXTRAS if name not in ("torch", "jax", "keras")
    ]  # people choose their builds
    assert project["optional-dependencies"]["all"] == [f"weft-compiler[{','.join(small)}]"]
    found = [one["what"] for one in figures(weft("doctor", "--json"))["findings"]]
    assert extras | {"onnxruntime"} <= set(found)
    code = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "weft").rglob("*.py") if path.parent.name != "cli"
    )
    for package, _ in doctor_command.EXTRAS.values():
        assert package in code, f"nothing in Weft uses {package}"


def test_doctor_measures_a_core(weft, tmp_path, monkeypatch):
    """`--calibrate` keeps what it measured in the cache folder, and the doctor says that costs come from there."""
    monkeypatch.setattr(calibrate, "RUNS", 2)
    monkeypatch.setattr(calibrate, "MOST_BYTES", 8 << 20)
    try:
        with knobs.override(cache_dir=tmp_path / "cache"):
            found = figures(weft("doctor", "--calibrate", "--json"))["findings"]
            assert (tmp_path / "cache" / "core.json").exists()
            assert "measured here" in next(one["detail"] for one in found if one["what"] == "its costs")
    finally:
        native.cache_clear()
        look_again()


def test_doctor_says_what_the_environment_asks_for(weft, monkeypatch):
    monkeypatch.setenv("WEFT_VERIFY", "1")
    monkeypatch.setenv("WEFT_VERIFFY", "1")
    lines = [one for one in figures(weft("doctor", "--json"))["findings"] if one["what"] == "setting"]
    assert any(one["detail"].startswith("WEFT_VERIFY=True (environment)") for one in lines)
    assert any("did you mean 'WEFT_VERIFY'?" in one["detail"] and one["mend"] == "unset WEFT_VERIFFY" for one in lines)
    monkeypatch.setenv("WEFT_VERIFY", "perhaps")
    code, out, _ = weft("doctor")
    assert code == 1 and "WEFT_VERIFY accepts" in out


# profile


def test_profile_shows_every_kernel(weft, tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE_DIR", str(tmp_path / "cache"))
    path, _ = tiny
    data, trace = tmp_path / "profile.json", tmp_path / "trace.json"
    code, out, err = weft("profile", path, "--threads", "1", "--seconds", "0.01", "--json", data, "--trace", trace)
    assert code == 0, err
    kernels = json.loads(data.read_text())["kernels"]
    assert kernels and all(kernel["label"] in out for kernel in kernels) and "of peak" in out
    assert {"third", "fourth"} <= {name for kernel in kernels for name in kernel["nodes"]}
    assert all(", ".join(kernel["nodes"]) in " ".join(out.split()) for kernel in kernels)
    assert len([event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]) == len(kernels)
    again = figures(weft("profile", path, "--threads", "1", "--seconds", "0.01", "--json", "-"))
    assert [kernel["label"] for kernel in again["kernels"]] == [kernel["label"] for kernel in kernels]
    code, out, _ = weft("profile", path, "--seconds", "0.01", "--top", "1")
    assert code == 0 and sum(kernel["label"] in out for kernel in kernels) >= 1


@pytest.mark.parametrize(
    ("words", "text"),
    [(["x.weft"], "profile the .onnx file"), (["{tiny}", "--top", "0"], "--top is 0"), (["none.onnx"], "no file")],
)
def test_profile_refuses(weft, tiny, words, text):
    code, _, err = weft("profile", *(word.format(tiny=tiny[0]) for word in words))
    assert code == 1 and text in err


def test_files_and_folders_of_other_frameworks_are_refused_with_a_way(weft, tmp_path):
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "saved_model.pb").touch()
    (tmp_path / "model.pt").touch()
    for path, way in ((saved, "TFLiteConverter"), (tmp_path, "give the path of one file"), (tmp_path / "model.pt", "")):
        code, _, said = weft("run", str(path))
        assert code and "weft.compile takes" in said and way in said


def test_diff_shows_where_models_part(weft):
    code, out, _ = weft("diff", "dqn", "dqn")
    assert code == 0 and "one graph of" in out
    code, out, _ = weft("diff", "dqn", "dcgan")
    assert code == 1 and "more of ConvTranspose" in out and "+ float32" in out
    made = json.loads(weft("diff", "dqn", "dcgan", "--json")[1])
    assert made["hashes"][0] != made["hashes"][1] and made["only"][0]
    assert figures(weft("inspect", "dqn", "--hash", "--json"))["hash"] == made["hashes"][0]
