"""The pydantic base of all documents that users write: strict models, clear errors, known keys."""
