"""Layer 7: importers, one folder a framework; all of them end in the same normal form."""
