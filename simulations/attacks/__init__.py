"""Attacks that ship with the simulator: hostile nodes on the product's own cores, and what honest ones make of them."""
