"""From settings to parts: the last place that sees a settings object on its way down."""
