"""Attention as a latent variable: marginal and variational attention (Deng et al. 2018)."""
