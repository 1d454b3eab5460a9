"""One file per stage of ``dvc.yaml``: read the settings it declares, do the work, publish outputs whole."""
