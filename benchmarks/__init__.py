"""Measurements of Weft against its peers; run as `python -m benchmarks.<name>`."""
