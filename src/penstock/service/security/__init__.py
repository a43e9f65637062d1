"""Who may connect to a service: tokens, certificates, and the checks of both."""
