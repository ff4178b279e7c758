"""The base of everything that users write: strict models, their errors in our own words, the keys they know."""
