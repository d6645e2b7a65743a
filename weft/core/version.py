"""The version of Weft: the only place that says it (`pyproject.toml` reads it from here)."""

VERSION = "0.2.0"
