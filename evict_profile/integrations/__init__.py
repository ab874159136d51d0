"""Cost tables in serving systems: as files that they load, and as a plug-in."""
