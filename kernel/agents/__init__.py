"""Agents and their roles as data, prompts, parsing of what they say."""
