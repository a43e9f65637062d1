"""The dispatcher as a machine without sockets, disk or clock: a function of its messages and their times.

Decisions read `Knowledge` and return updates and an answer. Updates of the lasting state are journalled before they are
applied; observations, which a new dispatcher can do without, are not. Nothing else changes the state.
"""
