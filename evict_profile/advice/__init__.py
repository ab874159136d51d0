"""How much to draft at each batch, from a cost table and acceptance in any form."""
