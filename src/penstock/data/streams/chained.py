"""Streams of operators of which several in a row are one for a state: `take` and `concatenate`."""

from penstock.data.streams.live_streams import LiveStreams
from penstock.data.streams.stream import OneInputStream, State
from penstock.errors import StateMismatchError


class ChainedStream(OneInputStream):
    """The stream of a node that a state knows by its `chain`.

    A chain may be one node here, and several with a prefetch between them where the state was saved, or the other way
    round. So after its two entries a state says of what nodes the chain was made, if these were several. A chain that
    is made of others cannot use them: the rows before the state are read again.

    Args:
        label: what the node is called in errors.
        chained: what tells of which nodes the chain is made; nothing if it is this one.
        live: the live streams of the iteration.
    """

    def __init__(self, label: str, chained: list[int], live: LiveStreams) -> None:
        self._label = label
        self._chained = chained
        self._live = live

    def fits(self, state: State) -> bool:
        if state[2:] == self._chained:
            return True
        if self._live:
            raise StateMismatchError(
                f"the state was saved with other operators between {self._label} and those of the same name below it: "
                "elements of a shared job cannot be read again, so restore it in a dataset with the same prefetch, map "
                "and cache there"
            )
        return False
