"""Security of connections to a service: tokens, certificates, and the checks of both."""
