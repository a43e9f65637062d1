"""What all iterations of a dataset have in common, and none needs to work out again."""

from functools import cached_property

from penstock.data.identity import Identities
from penstock.data.node import Node
from penstock.data.plan import Plan, going_on, make_plan
from penstock.options import Options


class Prepared:
    """A dataset's nodes and options, with the plans and identities that follow from them.

    They are worked out when they are first asked for. Threads that ask at the same time may do so twice, with equal
    results. It holds nodes alone, no streams, threads or files of an iteration.
    """

    def __init__(self, node: Node, options: Options) -> None:
        self.node = node
        self.options = options
        self.identities = Identities(node)

    @cached_property
    def plan(self) -> Plan:
        """The plan of an iteration.

        Raises:
            InvalidArgumentError: the dataset is too deep.
        """
        return make_plan(self.node, self.options)

    def plan_after(self, in_flight: str | None) -> Plan:
        """The plan of an iteration that continues from a state, whatever order its maps ask for.

        Args:
            in_flight: as in the plan that the state was saved under.

        Raises:
            StateMismatchError: the state names elements in flight, and there is no map here where they were.
        """
        return self._plan_in_order if in_flight is None else self._plan_going_on(in_flight)

    @cached_property
    def _plan_in_order(self) -> Plan:
        return self._plan_going_on(None)

    def _plan_going_on(self, in_flight: str | None) -> Plan:
        node = going_on(self.node, self.options, in_flight)
        return self.plan if node is self.node else make_plan(node, self.options)
