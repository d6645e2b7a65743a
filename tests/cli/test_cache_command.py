"""weft cache: lists, measures and clears what is kept."""

from __future__ import annotations

import json

import weft
from weft.cli.cache_command import ago
from weft.cli.main import main
from weft.core.knobs import knobs
from weft.models.builder import Builder


def test_what_is_kept_is_listed_and_cleared(tmp_path, capsys):
    (tmp_path / "models").mkdir()
    (tmp_path / "kernels").mkdir()
    (tmp_path / "models" / f"{'a' * 40}.weft").write_bytes(b"x" * 2048)
    (tmp_path / "kernels" / "one.o").write_bytes(b"x" * 100)
    with knobs.override(cache_dir=tmp_path):
        assert main(["cache", "list"]) == 0
        out = capsys.readouterr().out
        assert "not readable (BadZipFile)  aaaaaaaaaaaa" in out and "1 models (2.0 KB), 1 kernels (100 bytes)" in out
        assert main(["cache", "size", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["bytes"] == {"models": 2048, "kernels": 100}
        assert main(["cache", "clear"]) == 0
        assert main(["cache", "size"]) == 0
    assert "0 models" in capsys.readouterr().out and not list(tmp_path.glob("*/*"))


def test_models_are_listed_by_their_names(tmp_path, capsys):
    b = Builder("a_little_model", 0)
    (tmp_path / "models").mkdir()
    weft.compile(b.finish(b.node("Relu", b.input("x", (4,))))).save(tmp_path / "models" / "kept.weft")
    with knobs.override(cache_dir=tmp_path):
        assert main(["cache", "list"]) == 0
    assert "a_little_model" in capsys.readouterr().out
    assert [ago(seconds) for seconds in (90, 9000, 9e5)] == ["2 minutes ago", "2 hours ago", "10 days ago"]
