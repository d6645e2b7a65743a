"""Object code in the cache folder: made once, checked, and made again where it is damaged."""

from __future__ import annotations

import contextlib

import llvmlite.binding as llvm
import pytest

from weft.core import model
from weft.core.knobs import knobs
from weft.runtime import cache_folder, object_cache
from weft.runtime.jit import host_machine, host_triple
from weft.runtime.object_cache import cached_object


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """How often LLVM was asked; the cache is a folder of the test's own."""
    times: list[int] = []
    plain = object_cache._compile
    monkeypatch.setattr(object_cache, "_compile", lambda *given: times.append(1) or plain(*given))
    with knobs.override(cache_dir=tmp_path, cache=True):
        yield times


def text(number: int = 7) -> str:
    return f'target triple = "{host_triple()}"\ndefine i32 @f() {{\n  ret i32 {number}\n}}\n'


def test_a_module_is_compiled_once(compiled, tmp_path):
    machine = host_machine()
    first = cached_object(text(), machine)
    assert cached_object(text(), machine) == first and len(compiled) == 1
    assert cached_object(text(8), machine) != first and len(compiled) == 2
    assert len(list((tmp_path / "runtime").iterdir())) == 2
    llvm.ObjectFileRef.from_data(first)
    with knobs.override(cache=False):
        cached_object(text(), machine)
    assert len(compiled) == 3


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 5000])
def test_damage_is_mended(compiled, tmp_path, damage):
    machine = host_machine()
    first = cached_object(text(), machine)
    (path,) = (tmp_path / "runtime").iterdir()
    path.write_bytes(damage)
    assert cached_object(text(), machine) == first
    assert cached_object(text(), machine) == first and len(compiled) == 2
    path.write_bytes(path.read_bytes()[:-1])
    assert cached_object(text(), machine) == first and len(compiled) == 3


def test_a_flipped_bit_anywhere_and_a_folder_in_its_place_are_mended(compiled, tmp_path):
    machine = host_machine()
    first = cached_object(text(), machine)
    (path,) = (tmp_path / "runtime").iterdir()
    data = path.read_bytes()
    for times, at in enumerate(range(0, len(data), len(data) // 20), start=1):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        assert cached_object(text(), machine) == first and len(compiled) == 1 + times
    path.unlink()
    (path / "inside").mkdir(parents=True)
    compiled.clear()
    for _ in range(2):
        assert cached_object(text(), machine) == first
    assert len(compiled) == 1 and list((tmp_path / "runtime").iterdir()) == [path]


def test_a_disk_that_is_full_leaves_nothing_behind(compiled, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_folder.os, "replace", full)
    assert cached_object(text(), host_machine())
    assert not list((tmp_path / "runtime").iterdir())


def test_a_folder_that_others_can_write_is_not_used(compiled, tmp_path, caplog):
    cached_object(text(), host_machine())
    (tmp_path / "runtime").chmod(0o777)
    for _ in range(2):
        cached_object(text(), host_machine())
    assert len(compiled) == 3 and caplog.text.count("others may write") == 1


def test_a_folder_that_cannot_be_written_is_no_obstacle(compiled, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with knobs.override(cache_dir=blocked):
        assert cached_object(text(), host_machine())


def test_the_number_of_files_is_bounded(compiled, tmp_path, monkeypatch):
    monkeypatch.setattr(model, "OBJECTS_KEPT", 3)
    for number in range(6):
        cached_object(text(number), host_machine())
    assert len(list((tmp_path / "runtime").iterdir())) == 3


def test_a_file_that_goes_while_the_folder_is_read_keeps_nothing_from_being_kept(compiled, tmp_path, monkeypatch):
    machine = host_machine()
    cached_object(text(), machine)
    plain = object_cache.os.scandir

    class Gone:
        path = "gone"

        def stat(self, **_):
            raise FileNotFoundError("another process has renamed it")

    @contextlib.contextmanager
    def scandir(folder):
        with plain(folder) as files:
            yield [Gone(), *files]

    monkeypatch.setattr(object_cache.os, "scandir", scandir)
    cached_object(text(8), machine)
    monkeypatch.undo()
    assert len(list((tmp_path / "runtime").iterdir())) == 2
