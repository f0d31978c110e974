"""Adapters to text generation and embedding products."""
