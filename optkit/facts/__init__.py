"""What a figure, a precision, a layer, a gate and a device are: the facts that all rooms share."""
