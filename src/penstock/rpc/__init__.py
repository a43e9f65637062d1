"""How processes of penstock talk to each other: connections that both ends have proved, and frames of messages."""
