"""What a step costs: model x hardware x decision to seconds and bytes, over arrays of decisions at once."""
