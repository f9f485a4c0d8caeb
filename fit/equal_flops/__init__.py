"""Runs at equal FLOPs.

isoflop.py: parabolas over size. surface.py: surfaces over size and sparsity. learning_rate.py: peak learning rates
(Eq. 10).
"""
