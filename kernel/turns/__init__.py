"""Claims, votes, finality (fold) and the machine that takes turns."""
