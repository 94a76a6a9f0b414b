"""The folder in the PYTHONPATH of child processes; its ``sitecustomize`` installs the aliases."""
