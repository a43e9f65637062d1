"""The dispatcher: a machine that decides, a journal that remembers, a server around both."""
