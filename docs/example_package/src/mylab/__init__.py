"""Own parts for showattendtell, named by their import path: attention._target_=mylab.attention.SharpAttention."""
