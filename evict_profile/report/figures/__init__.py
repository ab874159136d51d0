"""The drawings of a report, one module each; every one returns an inline SVG."""
