"""The pipeline's stages, each a script: `python -m stages.NAME`."""

import sys

from aero.errors import prepare_loading

if sys.argv[:1] == ["-m"]:  # what Python puts there until it has found the stage to run; never where one is imported
    prepare_loading()
