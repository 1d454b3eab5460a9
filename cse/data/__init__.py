"""Data: from sources to prepared Arrow files, scored pairs, and the generated sample."""
