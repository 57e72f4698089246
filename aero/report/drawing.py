"""Old name of `aero.report.style`; goes when the last module that imports it is rewritten."""

from aero.report.style import *  # noqa: F403
from aero.report.style import PAGE, WIDTH, no_data, say_missing, spread, style, svg, swatch  # noqa: F401
