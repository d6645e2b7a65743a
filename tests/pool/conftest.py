"""Certificates for the tests of pools."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the certificates of a pool; skips where they cannot be made."""
    pytest.importorskip("distributed", reason="there is no distributed: weft-compiler[pool]")
    pytest.importorskip("cryptography", reason="there is no cryptography: weft-compiler[pool]")
    from weft.pool.ca import init_pool

    made = tmp_path_factory.mktemp("pool") / "certificates"
    init_pool(made)
    return made
