"""Who gets which dtype, observer and threshold, with the reason for each decision."""
