"""At equal FLOPs: isoflop.py, parabolas over size; surface.py, size and sparsity; learning_rate.py, rates (Eq. 10)."""
