"""Parameter servers: variables in separate processes, and workers that run functions against them.

`ClusterCoordinator` queues functions, which worker processes run: they read variables, and push gradients to the
servers, each of which applies them by its optimizer. Nothing of this is imported by `import penstock`.
"""
