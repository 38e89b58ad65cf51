"""The report on runs: what their folders tell, as one page, as pictures and as a model card.

This room reads files and draws; it trains nothing, and starts without torch.
"""
