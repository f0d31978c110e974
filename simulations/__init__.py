"""Many nodes in virtual time on the cores that ship."""
