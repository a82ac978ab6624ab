"""Measure how Vision Transformers come to have spatial structure; one module per concern."""
