"""Kernels of a decoder layer and of the ends of the model, at the data sheet's rates: sizes in, resource times out."""
