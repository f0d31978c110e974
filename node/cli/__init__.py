"""The masos command."""
