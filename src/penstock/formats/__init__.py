"""Bytes to rows and back."""
