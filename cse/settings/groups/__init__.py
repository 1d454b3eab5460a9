"""One file per group of ``params.yaml``: its keys, types, ranges and units."""
