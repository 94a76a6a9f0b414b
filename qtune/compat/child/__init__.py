"""The folder that child processes have in PYTHONPATH; its ``sitecustomize`` installs the aliases."""
