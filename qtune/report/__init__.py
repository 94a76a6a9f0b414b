"""Tables, curves and pages from plain values. Knows nothing of models; never imports torch."""
