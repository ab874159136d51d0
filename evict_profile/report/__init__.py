"""What was measured, drawn and told: one self-contained HTML file."""
