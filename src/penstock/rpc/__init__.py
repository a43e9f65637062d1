"""Communication between penstock's processes: connections that both ends have proved, and frames of messages."""
