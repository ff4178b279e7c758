"""Towers and generators on GPUs of their own: their sizes, tp and dp beside every plan of the language model."""
