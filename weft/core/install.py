"""The name that Weft is installed by, and whether another project stands where it is imported from.

    distribution    weft-compiler        what pip installs, and what every hint names: `hint("onnx")`
    package         weft                 what Python imports

`weft` on PyPI is another project, with a package of the same name: installed beside Weft, each overwrites files of the
other. `clashes` finds it by the metadata in the folder that holds our package, so that neither a checkout on PYTHONPATH
nor an editable install of our own (under the old name, too) is taken for it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DISTRIBUTION = "weft-compiler"
SUMMARY = "An optimizing deep-learning compiler in Python"
"""How the summary in our metadata begins: by it we know ourselves under the name of old, which was `weft`."""
FOLDER = Path(__file__).resolve().parents[2]
"""Where the package `weft` lies."""
NEEDED = ("llvmlite", "ml_dtypes", "platformdirs", "rich")
"""What the compiler needs besides numpy; what runs saved modules does not (docs/module-files.md)."""
PACKAGES = {
    **{name: name for name in ("onnx", "torch", "jax", "keras")},
    "pyopencl": "opencl",
    "nvidia": "cuda",
    "ziglang": "link",
    "xgboost": "tune",
    **dict.fromkeys(("distributed", "dask", "cryptography"), "pool"),
}
"""What our extras bring, by the name that is imported."""
MEND = f"pip uninstall weft, then pip install --force-reinstall --no-deps {DISTRIBUTION}"


def hint(extra: str = "") -> str:
    """The command that installs Weft, or Weft with an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'" if extra else f"pip install {DISTRIBUTION}"


def hint_for(package: str) -> str:
    """The command that installs a package: by our extra where there is one, so that its version fits."""
    return hint(PACKAGES[package]) if package in PACKAGES else f"pip install {package}"


@dataclass(frozen=True)
class Clash:
    """A distribution called `weft` in the folder of our package."""

    version: str
    summary: str

    @property
    def is_ours(self) -> bool:
        """Whether it is Weft itself, under its old name."""
        return self.summary.startswith(SUMMARY)

    def __str__(self) -> str:
        if self.is_ours:
            return f"Weft {self.version} under its old name lies in the same folder ({FOLDER}), and owns the same files"
        return (
            f"another project called weft ({self.version}: {self.summary}) is installed in {FOLDER}, "
            f"where the package weft of {DISTRIBUTION} lies: each overwrites files of the other"
        )


def clashes(folder: Path = FOLDER) -> list[Clash]:
    """The distributions called `weft` in a folder; reading its names is all that this costs where there is none."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.name.startswith("weft-") and entry.name.endswith("-info")]
    except OSError:
        return []  # a package inside an archive has no neighbours to clash with
    if not names:
        return []
    from importlib import metadata

    found = (metadata.Distribution.at(folder / name).metadata for name in sorted(names))
    return [Clash(str(one["Version"] or "?"), str(one["Summary"] or "")) for one in found]
