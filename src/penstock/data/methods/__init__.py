"""The methods of `Dataset`, by family: each checks its arguments and adds one node."""
