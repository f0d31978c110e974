"""Which memory a turn gets, under a token budget, with a receipt."""
