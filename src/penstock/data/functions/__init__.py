"""Functions of the user's: how rows are given to them, what they promise, and how they are recognised again."""
