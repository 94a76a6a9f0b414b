"""Structure checks: shared operators, patterns left unfused, dtypes and scales as configured."""
