"""No wait for another process without an end: each has a deadline, or stands here with what ends it."""

import ast
from collections.abc import Iterator
from pathlib import Path

from syntax_trees import nodes_of, tree_of

PACKAGE = Path(__file__).parent.parent / "src" / "penstock"
WAITING = {"join", "wait", "get", "select", "acquire", "communicate", "result", "exception", "recv", "recv_bytes"}
"""Calls that wait for ever where they are given no time."""
NO_WAITS = ("accumulators", "transform", "demo")
"""Rooms in which calls of these names give results."""

# What ends each wait that has no deadline. A new one needs a reason, and better a deadline.
ENDED_BY = {
    "the limit of the meeting": """
        distribute/jax/processes.py: meeting.join()
        jax/loader.py: meeting.join()
        torch/meeting.py: meeting.join()""",
    "a thread of this process, which waits for nothing without an end itself": """
        data/dataset.py: threads.join()
        data/iterator.py: self._pass.threads.join()
        data/sample.py: threads.join()
        distribute/control/channel.py: self._thread.join()
        distribute/control/channel.py: self._watch.join()
        launch/group.py: worker.join()
        launch/worker.py: self._follower.join()
        parameter_server/dispatch.py: self._thread.join()
        ray/service.py: self._thread.join()
        rpc/listener.py: self._thread.join()
        rpc/server.py: self._thread.join()
        runtime/announcements.py: self._thread.join()
        runtime/processes.py: self._thread.join()
        runtime/web_server.py: self._thread.join()
        service/background.py: self._thread.join()
        service/dispatcher/server.py: self._thread.join()
        testing/conformance.py: threads.join()
        data/operators/read_files.py: file.result()
        data/saving/save.py: done.result()
        data/streams/prefetched.py: self._channel.get()
        distribute/feed/dataset.py: self._prefetcher.get()
        distribute/feed/feed.py: self._channel.get()
        formats/remote/parts.py: RequestedParts(file, begins, ends).result()
        formats/remote/parts.py: request.result()
        formats/remote/remote_files.py: future.result()
        formats/remote/remote_files.py: self._coming.pop(group[0][0]).result()
        runtime/callers.py: woken.get()
        runtime/channel.py: self._items.get()
        runtime/channel.py: self._wake_producer.get()
        runtime/threads.py: answer.get()
        runtime/threads.py: self._asked.get()
        runtime/threads.py: ended.get()
        runtime/threads.py: self._tasks.get()
        service/reader/lanes.py: shared.changed.wait_for
        service/reader/reader.py: self._session.wait()
        service/reader/session.py: self._shared.changed.wait_for
        service/reader/session.py: self.wait()
        service/reader/session.py: shared.heartbeat_due.wait_for
        service/transport/block_server.py: self._changed.wait_for
        service/transport/block_server.py: self._requests.get()
        service/worker/shared_window.py: self._changed.acquire()
        service/worker/shared_window.py: self._changed.wait()
        training/checkpoint/checkpoint.py: self._task.exception()
        training/checkpoint/checkpoint.py: self._writer.wait()
        training/checkpoint/checkpoint.py: self.wait()
        training/checkpoint/checkpoint.py: task.exception()""",
    "the replicas of this process, which are the user's functions": """
        distribute/host/rendezvous.py: self._changed.wait_for
        distribute/host/strategy.py: thread.join()""",
    "the control channel: a worker that is lost or silent is a failure, and wakes all who wait": """
        distribute/control/channel.py: self._changed.wait_for""",
    "the control channel's watch, which ends a process that is blocked in a collective after a failure": """
        distribute/jax/mesh_strategy.py: self._launcher.wait()
        distribute/jax/ragged.py: self.launcher.wait()""",
    "the coordinator's thread, which watches the lines to all servers and workers": """
        parameter_server/coordinator.py: dispatch.changed.wait()
        parameter_server/coordinator.py: self._dispatch.snapshot().result()
        parameter_server/coordinator.py: self._outcome.result()
        training/keras/served_fit.py: self._coordinator.join()""",
    "the end of the line to the parent, or of the parent, at which the process ends": """
        parameter_server/server.py: self._selector.select()""",
    "a process that was killed": """
        parameter_server/local_engine.py: self._process.wait()
        runtime/processes.py: self._process.wait()
        service/local_worker.py: self._process.wait()""",
    "the processes that this one runs for, as long as they run": """
        cli/servers.py: server.join()
        cli/servers.py: wakeups.wait()
        launch/worker.py: self._process.wait()
        ray/actors.py: self._server.join()""",
    "Ray, which raises where an actor or its machine is lost": """
        ray/parameter_servers.py: self.place.result()
        ray/service.py: ray.get(drained)
        ray/train.py: ray.get""",
    "files of this machine": """
        training/checkpoint/ranges.py: tensorstore""",
}


def waits_in(path: Path) -> Iterator[str]:
    """The calls of a file that may wait for ever."""
    contexts = {
        target.id
        for node in tree_of(path).body
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and "ContextVar" in ast.unparse(node)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for node in nodes_of(path):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        name = node.func.attr
        if name != "wait_for" and name not in WAITING:
            continue
        given, of = [*node.args, *(keyword.value for keyword in node.keywords)], ast.unparse(node.func.value)
        endless = not given or (len(given) == 1 and isinstance(given[0], ast.Constant) and given[0].value is None)
        if name == "wait_for" or of == "ray" and name == "get":
            endless = len(given) == 1
        elif of in contexts or of == "sys":
            continue
        if endless:
            yield ast.unparse(node)


def test_every_wait_for_another_process_has_a_deadline_or_a_reason() -> None:
    listed = {entry.strip() for entries in ENDED_BY.values() for entry in entries.splitlines() if entry.strip()}
    unused, new = set(listed), []
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE)
        if room.parts[0] in NO_WAITS:
            continue
        for call in waits_in(path):
            found = {entry for entry in listed if f"{room}: {call}".startswith(entry)}
            unused -= found
            if not found:
                new.append(f"{room}: {call}")
    assert not new, "give these waits a deadline: " + "; ".join(new)
    assert not unused, "these waits are gone: " + "; ".join(sorted(unused))
