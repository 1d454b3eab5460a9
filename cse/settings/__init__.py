"""Settings: one strict, frozen tree, parsed once at the entry points."""

from cse.settings.load import PARAMS_FILE, check_settings, load_settings
from cse.settings.tree import Settings

__all__ = ["PARAMS_FILE", "Settings", "check_settings", "load_settings"]
