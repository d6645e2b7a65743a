"""Programs for those who work on Weft; no part of the package."""
