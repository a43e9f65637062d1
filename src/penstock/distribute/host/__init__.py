"""The strategy in host memory: NumPy alone, replicas in threads."""
