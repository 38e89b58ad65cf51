"""Differentially private training in flat minima."""
