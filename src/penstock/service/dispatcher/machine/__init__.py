"""The dispatcher as a machine without sockets, disk or clock.

`decide` reads the state and says what should change and what is answered; `apply` is the only way to change it. What
is lost without harm when a dispatcher ends (when somebody was heard of last, what rates were reported) stands apart,
in `Signs`.
"""
