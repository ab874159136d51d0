"""Cost tables in the formats that serving systems load today.

Each format holds less than the table, so each comes with a note on what it lost.
Nothing here imports a serving system: the formats are theirs, the code is not.
"""
