"""Files that appear whole."""

from __future__ import annotations

from pathlib import Path

from weft.runtime.cache_folder import write_whole


def test_so_many_bytes_are_written_together(tmp_path: Path) -> None:
    """A mapped file lies in large pages where it was written in large pieces."""
    path = tmp_path / "whole"
    with write_whole(path, together=1 << 20) as file:
        (beside,) = tmp_path.iterdir()
        sizes = set()
        for _ in range(40):
            file.write(b"x" * 100_000)
            sizes.add(beside.stat().st_size)
        assert not path.exists() and sizes == {0, 1_000_000, 2_000_000, 3_000_000}
    assert path.read_bytes() == b"x" * 4_000_000 and list(tmp_path.iterdir()) == [path]
