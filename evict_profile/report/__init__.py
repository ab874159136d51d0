"""Every page and every terminal table: what was computed, shown one way."""
