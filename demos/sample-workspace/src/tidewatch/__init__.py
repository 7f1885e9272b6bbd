"""Water level forecasts for small harbours."""

__version__ = "0.4.0"
