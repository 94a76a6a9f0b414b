"""Where the error comes from: bad cases, comparison per layer, sensitivity, tuning."""
