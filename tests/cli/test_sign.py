"""`weft sign`: keys, signatures, and what it says where one is missing."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.graphs import mlp
from weft.cli.main import main
from weft.compiler import compile, load


def test_a_key_is_made_a_file_signed_and_checked(tmp_path, capsys):
    key, path = str(tmp_path / "team.key"), tmp_path / "mlp.weft"
    compile(mlp()).save(path)
    assert main(["sign", "--new-key", key]) == 0 and "keep it secret" in capsys.readouterr().out
    assert main(["sign", str(path), "--key", key, "--check"]) == 1 and "not signed" in capsys.readouterr().err
    assert main(["sign", str(path), "--key", key]) == 0
    assert main(["sign", str(path), "--key", key, "--check"]) == 0 and "signed with" in capsys.readouterr().out
    assert load(path, key=key)(np.zeros((4, 20), "float32")).shape == (4, 7)


@pytest.mark.parametrize(
    "words", [[], ["m.weft"], ["--key", "k"], ["--key", "k", "--new-key", "j"], ["--new-key", "j", "--check"]]
)
def test_what_does_not_fit_together_is_refused(words, capsys):
    assert main(["sign", *words]) == 1
    said = capsys.readouterr().err
    assert "--key" in said or "module files" in said
