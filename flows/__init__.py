"""Prefect flows: when and where the pipeline runs. What it does and in what order stands in ``dvc.yaml``."""
