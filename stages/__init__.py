"""The pipeline's stages, each a script: `python -m stages.NAME`."""
