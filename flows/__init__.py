"""Prefect flows: when and where the pipeline runs. ``dvc.yaml`` defines what it does, in what order."""

import os

# Set before prefect is imported: no telemetry, and time for a first start on a slow machine.
for _name, _value in {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",
}.items():
    os.environ.setdefault(_name, _value)
