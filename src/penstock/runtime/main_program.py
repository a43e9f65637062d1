"""The main program under the name that it has in processes of `multiprocessing`."""

import sys

import cloudpickle

_NAME_IN_SPAWNED = "__mp_main__"


def send_main_by_value() -> None:
    """Let cloudpickle send what the main program defines by its value, in processes that others have spawned too.

    There, as in the workers of a DataLoader, the main program is a module that no other process can import.
    """
    main = sys.modules.get(_NAME_IN_SPAWNED)
    if main is not None:
        cloudpickle.register_pickle_by_value(main)
