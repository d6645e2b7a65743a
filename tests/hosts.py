"""This machine with less than it has: the code of lesser machines, run here."""

from weft.targets.cpu.facts import architecture
from weft.targets.registry import find_target

ARCHITECTURE = architecture(find_target("native").triple)


def lesser(*, x86: tuple[str, ...], aarch64: tuple[str, ...] = ("-neon",)) -> list[str]:
    """The texts of targets for each set of features taken from this machine; none where nothing is known to take."""
    taken = {"x86_64": x86, "aarch64": aarch64}.get(ARCHITECTURE or "", ())
    return [f"native,features={features}" for features in taken]
