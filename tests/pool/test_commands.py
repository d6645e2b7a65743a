"""The commands of a pool: what they make, and what they refuse."""

from __future__ import annotations

import json
import stat

import pytest

from tests.pool.libraries import need_compiler
from weft.cli.main import main


def test_init_makes_certificates_once(tmp_path, capsys):
    pytest.importorskip("cryptography", reason="there is no cryptography: weft-compiler[pool]")
    folder = tmp_path / "pool"
    assert main(["pool", "init", "--certificates", str(folder), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)["files"]
    assert len(made) == 9 and all(stat.S_IMODE((folder / name).stat().st_mode) == 0o600 for name in made)
    assert main(["pool", "init", "--certificates", str(folder)]) == 1
    assert "holds a pool already" in capsys.readouterr().err


@pytest.mark.slow
def test_the_server_is_one_small_static_program(tmp_path, capsys):
    need_compiler()
    path = tmp_path / "server"
    assert main(["pool", "server", "--target", "armv7", "-o", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] < 400_000
    assert path.read_bytes()[:4] == b"\x7fELF" and b"ld-musl" not in path.read_bytes()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["pool", "init", "--port", "1"], "belongs to weft pool start"),
        (["pool", "start", "--target", "armv7"], "belongs to weft pool server"),
        (["pool", "server", "--target", "abacus"], "no device server is made for 'abacus'"),
        (["worker", "--kind", "x"], "--join URL and --kind KIND"),
        (["worker", "--join", "tls://x:1", "--kind", "build", "--device", "here"], "a builder has no device"),
        (["worker", "--join", "http://x:1", "--kind", "x"], "'http://x:1' is no address of a pool: tls://HOST:PORT"),
        (["devices", "--pool", "tls://desk"], "'tls://desk' is no address of a pool"),
        (["devices", "--certificates", "x"], "it belongs to --pool"),
        (["tune", "dqn", "--pool", "tls://x:1"], "--target KIND says which devices"),
        (["bench", "dqn", "--pool", "tls://x:1", "--threads", "2"], "a pool's device measures one core"),
        (["compile", "dqn", "--certificates", "x"], "it belongs to --pool"),
    ],
)
def test_what_makes_no_sense_is_said(words, text, capsys):
    assert main(words) == 1
    assert text in capsys.readouterr().err


def test_a_folder_without_certificates_is_said(tmp_path, capsys):
    pytest.importorskip("distributed", reason="there is no distributed: weft-compiler[pool]")
    assert main(["pool", "start", "--certificates", str(tmp_path)]) == 1
    assert "weft pool init" in capsys.readouterr().err
