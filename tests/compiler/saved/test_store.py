"""The module file: what was saved runs again; what is damaged or foreign is refused in words."""

from __future__ import annotations

import io
import json
import os
import pickle
import platform
import shutil
import stat
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.compiler.graphs import attention, check, convnet, mlp, random_inputs
from tests.compiler.saved.module_mutations import closed, rewritten
from tests.compiler.test_compile import with_host_node
from weft.compiler import compile, load
from weft.compiler.specialize import Executor
from weft.core.errors import WeftError
from weft.core.knobs import knobs
from weft.expr.nodes import Var, int_value
from weft.graph.interpreter import interpret_graph
from weft.graph.ir import Graph, Node, TensorType, Value
from weft.loop.passes.check_bounds import ERRORS
from weft.models.builder import Builder
from weft.models.llama import llama_110m
from weft.runtime import abi
from weft.runtime.model import module_file
from weft.runtime.model.keys import new_key, read_key
from weft.runtime.model.manifest import ModuleFileError
from weft.targets.cuda import nvrtc


@pytest.fixture(scope="module", params=["linked", "objects"])
def saved(tmp_path_factory, request):
    """A saved convnet: with code that the system's loader opens, and with code that only the compiler links."""
    path = tmp_path_factory.mktemp("module") / "net.weft"
    module = compile(convnet())
    module._executor.save(module, path, link=request.param == "linked")
    return path


def code_of(path: Path) -> str:
    """The member that holds the code which is run."""
    with zipfile.ZipFile(path) as archive:
        return next((name for name in archive.namelist() if name.endswith(".so")), "code/0.o")


@pytest.mark.parametrize("make", [convnet, attention])
def test_saved_modules_run_again(make, tmp_path):
    graph = make()
    compile(graph).save(tmp_path / "net.weft")
    module = load(tmp_path / "net.weft")
    assert [p.name for p in module.inputs] == [v.name for v in graph.inputs]
    assert [p.shape for p in module.outputs] == [v.tensor.static for v in graph.outputs]
    check(graph, random_inputs(graph, 3), module)


def test_another_process_runs_it(saved, tmp_path):
    graph = convnet()
    arrays = random_inputs(graph, 5)
    np.save(tmp_path / "x.npy", arrays[0])
    code = (
        "import sys, numpy as np; from weft.compiler import load; "
        "np.save(sys.argv[3], load(sys.argv[1])(np.load(sys.argv[2])))"
    )
    command = [sys.executable, "-c", code, str(saved), str(tmp_path / "x.npy"), str(tmp_path / "y.npy")]
    subprocess.run(command, check=True)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), interpret_graph(graph, arrays)[0], rtol=1e-4, atol=1e-6)


def test_symbolic_sizes_and_host_nodes_survive(tmp_path):
    graph = mlp(Var("batch"))
    module = compile(graph)
    module(np.zeros((3, 20), "float32"))
    module.save(tmp_path / "mlp.weft")
    again = load(tmp_path / "mlp.weft")
    for size in (3, 6):
        check(graph, random_inputs(graph, size, {"batch": size}), again)
    graph = with_host_node()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compile(graph).save(tmp_path / "host.weft")
        check(graph, [np.array([1, 1, 2] * 4, "float32")], load(tmp_path / "host.weft"))


@pytest.mark.parametrize("name, value", [("exact", True), ("fuse", False)])
def test_settings_survive_for_what_is_compiled_later(name, value, tmp_path, monkeypatch):
    """A model with open sizes that was to be exact is exact for the sizes that it meets after it was loaded."""
    with knobs.override(**{name: value}):
        module = compile(mlp(Var("batch")))
    module.save(tmp_path / "mlp.weft")
    seen: list[bool] = []
    form = Executor._form
    monkeypatch.setattr(Executor, "_form", lambda *given: seen.append(getattr(knobs, name)) or form(*given))
    for again in (load(tmp_path / "mlp.weft"), pickle.loads(pickle.dumps(module))):
        again(np.zeros((5, 20), "float32"))
    assert seen == [value] * 4  # each for its sizes, and for all


def with_strings(count: int) -> Graph:
    """A constant of strings that is added to the end of strings that come in."""
    x, y = Value("x", TensorType("string", (count,))), Value("y", TensorType("string", (count,)))
    ending = Value("ending", TensorType("string", (count,)))
    texts = np.array([f"ending «{i}»\n" for i in range(count)], object)
    return Graph("strings", [x], [y], [Node("StringConcat", [x, ending], [y])], {ending: texts})


@pytest.mark.parametrize("count", [3, 40])
def test_constant_strings_survive(count, tmp_path):
    graph = with_strings(count)
    given = np.array([f"word {i} " for i in range(count)], object)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compile(graph).save(tmp_path / "strings.weft")
        made = load(tmp_path / "strings.weft")(given)
    assert made.tolist() == interpret_graph(graph, [given])[0].tolist() and "«2»" in made[2]


@pytest.mark.parametrize("make", [convnet, attention, with_host_node, lambda: mlp(Var("batch"))])
def test_the_report_survives(make, tmp_path):
    graph = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = compile(graph)
        for size in (2, 3):
            module.run(None, dict(zip([v.name for v in graph.inputs], random_inputs(graph, 1, {"batch": size}))))
        module.save(tmp_path / "net.weft")
        again = load(tmp_path / "net.weft")
        assert module.report().startswith(again.report()) and "kernel calls" in again.report()
        again.save(tmp_path / "twice.weft")
        assert load(tmp_path / "twice.weft").report() == again.report()


def test_nothing_is_pickled_and_weights_are_stored_plain(saved):
    with zipfile.ZipFile(saved) as archive:
        names = archive.namelist()
        assert "manifest.json" in names and archive.getinfo("weights.bin").compress_type == zipfile.ZIP_STORED
        assert all(name.endswith((".json", ".o", ".so", ".bin")) for name in names)


@pytest.mark.parametrize(
    "damage", ["cut", "noise", "text", "missing", "weights", "manifest", "code", "folder", "empty"]
)
def test_damaged_files_are_refused(saved, tmp_path, damage):
    path = tmp_path / "bad.weft"
    data = bytearray(saved.read_bytes())
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "noise":
        path.write_bytes(np.random.default_rng(0).bytes(1000))
    elif damage == "text":
        path.write_text("not a module")
    elif damage == "weights":
        with zipfile.ZipFile(saved) as archive:
            start = archive.getinfo("weights.bin").header_offset + 500
        data[start] ^= 0xFF
        path.write_bytes(data)
    elif damage == "manifest":
        path.write_bytes(
            with_manifest(saved, lambda manifest: manifest["parts"][0]["forms"][0].update(weights=[99999]))
        )
    elif damage == "code":
        path.write_bytes(with_member(saved, code_of(saved), b"this is no code"))
    elif damage == "folder":
        path.mkdir()
    elif damage == "empty":
        path.write_bytes(b"")
    with pytest.raises(ModuleFileError) as caught:
        load(path)
    assert "bad.weft" in str(caught.value)


def with_manifest(source: Path, change) -> bytes:
    """A file whose manifest was changed, with a checksum that fits."""
    with zipfile.ZipFile(source) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    change(manifest)
    return rewritten(source, json.dumps(manifest))


def with_member(source: Path, name: str, data: bytes) -> bytes:
    """A file with another member, with a checksum that fits."""
    out = io.BytesIO(source.read_bytes())
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(out, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
        archive.comment = bytes(module_file.TRAILER_BYTES)
    return closed(out.getvalue())


def test_a_flipped_bit_anywhere_is_noticed(saved, tmp_path):
    data = saved.read_bytes()
    path = tmp_path / "flipped.weft"
    for at in np.linspace(0, len(data) - 66, 60, dtype=int):  # behind that is room for a signature
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        with pytest.raises(ModuleFileError):
            load(path)


def test_members_that_were_cut_are_refused_whatever_the_checksum_says(saved, tmp_path):
    data = bytearray(saved.read_bytes())
    with zipfile.ZipFile(saved) as archive:
        places = [info.header_offset for info in archive.infolist()]
    path = tmp_path / "cut.weft"
    for at in places:
        for offset in (0, 8, 14, 18, 22, 26, 40, 120):  # fields of a member's header, and its content
            changed = data.copy()
            changed[at + offset] ^= 0x55
            path.write_bytes(closed(bytes(changed)))
            try:
                module = load(path)
            except ModuleFileError:
                continue
            assert module(*random_inputs(convnet())).shape == (2, 10)  # weights are what the checksum says


@pytest.mark.parametrize("what", ["manifest", "code"])
def test_a_member_that_swells_is_refused_before_it_is_read(saved, tmp_path, what):
    path, name = tmp_path / "bomb.weft", "manifest.json" if what == "manifest" else code_of(saved)
    path.write_bytes(with_member(saved, name, bytes(1 << 27)))
    with pytest.raises(ModuleFileError, match=f"its {name} would take 134,217,728 bytes"):
        load(path)


def test_a_member_packed_in_another_way_is_refused(saved, tmp_path):
    out = io.BytesIO(saved.read_bytes())
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(out, "a") as archive:
        archive.writestr("manifest.json", archive.read("manifest.json"), zipfile.ZIP_BZIP2)
        archive.comment = bytes(module_file.TRAILER_BYTES)
    (tmp_path / "other.weft").write_bytes(closed(out.getvalue()))
    with pytest.raises(ModuleFileError, match=r"its manifest\.json"):
        load(tmp_path / "other.weft")


def test_other_machines_and_versions_are_named(saved, tmp_path):
    for key, change, text in (
        ("format", 99, "format 99.*compile the model again"),
        ("format", 3, "written by another Weft .*format 3"),
        ("format", 8, "format 8"),  # whose kernels do not say whether their blocks meet
        ("weft", "0.0.1", "another Weft .*weft 0.0.1.*compile the model again"),
        ("abi", "0123456789abcdef", "another Weft .*abi 0123456789abcdef"),
        ("target", {"name": "x", "triple": "riscv64-unknown-linux-gnu", "cpu": "x"}, f"riscv64.*{platform.machine()}"),
        ("flags", ["quantum"], f"this machine is {platform.machine()}.*has not quantum"),
        ("features", ["sse2", "quantum"], "quantum"),
        ("settings", {"exact": True}, "settings are exact"),
    ):

        def change_to(manifest, key=key, change=change):
            (manifest if key in manifest else manifest["parts"][0]).update({key: change})

        path = tmp_path / "foreign.weft"
        path.write_bytes(with_manifest(saved, change_to))
        if key in ("features", "settings") and code_of(saved).endswith(".so"):
            load(path)  # matters for what is compiled later
            continue
        with pytest.raises(ModuleFileError, match=text):
            load(path)


def test_a_module_without_a_checksum_is_an_old_one(saved, tmp_path):
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(tmp_path / "old.weft", "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(ModuleFileError, match="older Weft"):
        load(tmp_path / "old.weft")


@pytest.mark.parametrize("what", ["bases", "output", "output and reach", "weight", "arena", "order", "written"])
def test_no_manifest_reaches_past_its_memory(saved, tmp_path, what):
    """A short list of bases ended the process, a smaller output was written past its end."""

    def change(manifest):
        form = manifest["parts"][0]["forms"][0]
        (step,) = form["steps"]
        if what == "bases":
            step["bases"].pop()
        elif what == "output":
            step["makes"][0][2] = [2, 1]
            manifest["outputs"][0][2] = [2, 1]
        elif what == "output and reach":
            step["makes"][0][2] = [2, 1]
            manifest["outputs"][0][2] = [2, 1]
            step["reach"][step["bases"].index(["value", step["makes"][0][0]])][0] = 8
        elif what == "weight":
            weights = [base for base in step["bases"] if base[0] == "weight"]
            weights[0][1], weights[1][1] = weights[1][1], weights[0][1]
        elif what == "arena":
            form["arena"] //= 2
        elif what == "order":
            form["outputs"] = form["inputs"]
        else:
            made = step["bases"].index(["value", step["makes"][0][0]])
            step["bases"][made] = ["weight", 0]

    path = tmp_path / "reaching.weft"
    path.write_bytes(with_manifest(saved, change))
    with pytest.raises(ModuleFileError):
        load(path)


def test_constant_indices_that_lead_outside_are_refused(tmp_path):
    """A kernel whose indices are constants was compiled without a test of them: the file's must be as good."""
    b = Builder("gather")
    places = np.arange(40) % 8
    graph = b.finish(b.node("Gather", b.relu(b.input("x", (8, 4))), b.constant(places)))
    path = tmp_path / "gather.weft"
    compile(graph).save(path)
    check(graph, random_inputs(graph), load(path))
    data, old = path.read_bytes(), places.tobytes()
    assert data.count(old) == 1
    for place in (8, -9, 1 << 40):
        path.write_bytes(closed(data.replace(old, np.where(places == 3, place, places).tobytes())))
        try:
            made = load(path)
        except ModuleFileError as error:
            assert "outside" in str(error)
            continue
        with pytest.raises(WeftError):  # the kernel tests them itself
            made(*random_inputs(graph))


# --------------------------------------------------------------------------------------------------------- signatures


@pytest.fixture
def key(tmp_path):
    new_key(tmp_path / "team.key")
    return tmp_path / "team.key"


def test_a_signed_file_is_taken_and_no_other(saved, tmp_path, key):
    path = tmp_path / "net.weft"
    shutil.copy(saved, path)
    with pytest.raises(ModuleFileError, match="not signed.*weft sign"):
        load(path, key=key)
    module_file.sign_module(path, key)
    for given in (key, str(key), read_key(key)):
        check(convnet(), random_inputs(convnet()), load(path, key=given))
    load(path)
    new_key(tmp_path / "other.key")
    with pytest.raises(ModuleFileError, match="not signed with this key"):
        load(path, key=tmp_path / "other.key")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_a_signature_is_checked_before_anything_is_parsed(saved, tmp_path, key, monkeypatch):
    path = tmp_path / "net.weft"
    shutil.copy(saved, path)
    module_file.sign_module(path, key)
    signed = path.read_bytes()
    changed = with_manifest(path, lambda manifest: manifest["parts"][0]["forms"][0].update(report=["another"]))
    path.write_bytes(changed[: -module_file.TRAILER_BYTES] + changed[-module_file.TRAILER_BYTES : -65] + signed[-65:])
    load(path)
    monkeypatch.setattr(module_file.zipfile, "ZipFile", None)
    with pytest.raises(ModuleFileError, match="changed afterwards"):
        load(path, key=key)


def test_keys_are_refused_in_words(saved, tmp_path, key):
    (tmp_path / "junk.key").write_bytes(b"\xff" * 100)
    for given, text in (("missing.key", "cannot be read"), ("junk.key", "is no key"), (b"short", "32 bytes")):
        with pytest.raises(WeftError, match=text):
            load(saved, key=given if isinstance(given, bytes) else tmp_path / given)
    os.mkfifo(tmp_path / "pipe.key")
    for odd, text in (
        (5, "not a int"),
        ("", "cannot be read"),
        ("a\0b", "null"),
        (tmp_path / "pipe.key", "is no file"),
    ):
        with pytest.raises(WeftError, match=text):
            load(saved, key=odd)
    with pytest.raises(WeftError, match="cannot be made"):
        new_key(key)


# -------------------------------------------------------------------------------------------------------------- saving


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_saved_file_has_the_permissions_of_any_new_file(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        compile(mlp()).save(tmp_path / "mlp.weft")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "mlp.weft").stat().st_mode) == mode


def test_a_module_is_saved_behind_a_link_and_never_in_place_of_a_folder_or_device(saved, tmp_path):
    module = load(saved)
    (tmp_path / "link.weft").symlink_to(tmp_path / "real.weft")
    module.save(tmp_path / "link.weft")
    assert (tmp_path / "link.weft").is_symlink() and (tmp_path / "real.weft").is_file()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to_pipe").symlink_to(tmp_path / "pipe")
    for place in (tmp_path, tmp_path / "pipe", tmp_path / "to_pipe", ""):
        with pytest.raises(ModuleFileError, match="is a folder or a device"):
            module.save(place)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_failed_save_leaves_the_old_file(saved, tmp_path):
    path = tmp_path / "kept.weft"
    shutil.copy(saved, path)
    before = path.read_bytes()
    module = compile(convnet())
    module._executor.signature = None  # cannot be written
    with pytest.raises(AttributeError):
        module.save(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not nvrtc.is_available(), reason="NVRTC is not installed")
def test_caches_that_lie_in_place_are_not_copied_by_a_loaded_module_either(tmp_path):
    graph = llama_110m(1, vocabulary=32, layers=1, width=32, heads=2, key_heads=2, hidden=32)
    sizes = {one.name: tuple(int_value(d) or 16 for d in one.tensor.dims) for one in graph.inputs}
    module = weft.compile(graph, target="cuda:sm_90a", shapes=sizes)
    module.save(tmp_path / "decoder.weft")
    again = weft.load(tmp_path / "decoder.weft")

    def copies(one):
        return [call.copies for step in one.specializations[0].runner.program.steps for call in step.calls]

    assert copies(module) == copies(again) and any(copies(again))


def test_load_says_how_dangerous_it_is():
    assert "as dangerous as loading a shared library" in " ".join((weft.load.__doc__ or "").split())


def test_the_hash_of_the_abi_follows_what_is_agreed_on(saved, monkeypatch):
    load(saved)
    before = abi.abi_hash()
    abi.abi_hash.cache_clear()
    try:
        assert any(ERRORS in fact for fact in abi.abi_facts())
        monkeypatch.setattr(abi, "FUNCTIONS", [*abi.FUNCTIONS, "weft_another"])
        assert abi.abi_hash() != before
        with pytest.raises(ModuleFileError, match=f"abi {before}"):
            load(saved)
    finally:
        monkeypatch.undo()
        abi.abi_hash.cache_clear()
