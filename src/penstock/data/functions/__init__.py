"""Functions of the user's: how rows are given to them, what they promise, and by what they are known again."""
