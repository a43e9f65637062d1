"""Who may talk to a service: tokens, certificates, and the doors that ask for them."""
