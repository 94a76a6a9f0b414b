"""Changes of a finished module: operators put on its arguments, taken away, functions cut out."""
