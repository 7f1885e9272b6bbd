"""Metier: a skill-native agent runtime. A run is its journal."""

__version__ = "0.1.0"
