"""Calibration and training of gated models. Never imported at run time."""
