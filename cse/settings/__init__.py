"""Settings: one strict, frozen tree, parsed once at the entry points."""

from cse.settings.load import PARAMS_FILE, Settings, check_settings, load_settings

__all__ = ["PARAMS_FILE", "Settings", "check_settings", "load_settings"]
