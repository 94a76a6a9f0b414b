"""Names that scripts import from ``fx`` of the plugin."""
