"""Quantities that claims are decided on: one function each, which reads the results and returns a `Measurement`.

A claim in `aero/published` names a public function of one of these modules and its parameters.
"""
