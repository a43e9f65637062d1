"""The dispatcher as a machine without sockets, disk or clock: what happens is a function of what it is told, and when.

What decides reads `Knowledge` and gives updates and an answer. Updates of the lasting state are written down before
they are made; observations, which are lost without harm when a dispatcher ends, are not. Nothing else changes anything.
"""
