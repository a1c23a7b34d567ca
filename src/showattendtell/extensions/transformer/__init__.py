"""A transformer decoder (Vaswani et al. 2017)."""
