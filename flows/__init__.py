"""Prefect flows: when and where the pipeline runs. What it does and in what order stands in ``dvc.yaml``."""

import os

# Before prefect is imported: nothing is sent anywhere, and a first start on a slow machine may take its time.
for _name, _value in {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",
}.items():
    os.environ.setdefault(_name, _value)
