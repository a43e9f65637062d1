"""What all iterations of a dataset have in common, and none needs to work out again."""

from functools import cached_property

from penstock.data.node import Node
from penstock.data.plan import Plan, make_plan
from penstock.options import Options


class Prepared:
    """A dataset's nodes and options, with the plan that follows from them.

    It is worked out when it is first asked for. Threads that ask at the same time may do so twice, with equal results.
    It holds nodes alone, no streams, threads or files of an iteration.
    """

    def __init__(self, node: Node, options: Options) -> None:
        self.node = node
        self.options = options

    @cached_property
    def plan(self) -> Plan:
        """The plan of an iteration."""
        return make_plan(self.node)
