"""What a model is: layers as data, exact tensor counts and bytes."""
