"""`penstock launch`."""

import argparse
import os
import signal
import sys
from pathlib import Path

from penstock.cli.arguments import Commands, add_command, count, failed, positive, seconds
from penstock.launch import launch


def add_launch(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(
        commands, "launch", _launch, "Example: penstock launch -n 2 --devices-per-worker 2 train.py --epochs 3"
    )
    parser.usage = "penstock launch -n N [options] [-m] PROGRAM [ARGUMENT ...]"
    parser.add_argument(
        "-n", "--workers", dest="num_workers", type=positive, metavar="N", required=True, help="how many processes"
    )
    parser.add_argument(
        "--min-workers",
        type=positive,
        metavar="N",
        help="after a lost worker continue with one less, but not with fewer than this (default: as many as before)",
    )
    parser.add_argument(
        "--max-restarts",
        type=count,
        metavar="N",
        default=0,
        help="how many lost workers to make up for: all others are killed, and a group of one less starts, which grows "
        "again when it has saved a checkpoint (default: 0, the first lost worker ends the command)",
    )
    parser.add_argument(
        "--devices-per-worker",
        type=positive,
        metavar="N",
        help="give each worker N virtual CPU devices and no accelerators (default: JAX uses those it finds)",
    )
    parser.add_argument(
        "--grace",
        type=seconds,
        metavar="SECONDS",
        default=10.0,
        help="how long the other workers may continue after one has failed, and how long workers have to end after "
        "SIGTERM before they are killed (default: 10)",
    )
    parser.add_argument("-m", dest="module", action="store_true", help="PROGRAM is a module, as for python -m")
    parser.add_argument("program", metavar="PROGRAM", help="the Python script, or with -m the module")
    rest = parser.add_argument(
        "arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="arguments of the program"
    )
    rest.required = False  # argparse would name it beside PROGRAM when that is missing


def _launch(options: argparse.Namespace) -> int:
    """Start several processes of one training script on this machine.

    They are the workers of one training job, to test a program that is meant for many machines. The environment
    variables PENSTOCK_COORDINATOR_ADDRESS, PENSTOCK_NUM_WORKERS and PENSTOCK_WORKER_INDEX tell each worker where worker
    0 listens, how many there are, and its number. Each line of output begins with the number of its worker: [0], [1],
    and so on. The command ends when all workers have ended, with status 0 if all returned 0, otherwise with the status
    of the first that failed. Ctrl-C ends all of them; a second Ctrl-C kills them.

    Put options of penstock before PROGRAM; everything after it is passed to the program.
    """
    if not options.module and not Path(options.program).exists():
        return failed(f"there is no {options.program}: give the path of a Python script, or -m and a module", 2)
    program = ["-m", options.program] if options.module else [options.program]
    if options.min_workers is not None and options.min_workers > options.num_workers:
        return failed(f"--min-workers must be at most --workers, which is {options.num_workers}", 2)
    if options.min_workers not in (None, options.num_workers) and not options.max_restarts:
        return failed("--min-workers needs --max-restarts: without restarts no smaller group ever starts", 2)
    status = launch(
        [sys.executable, *program, *options.arguments],
        num_workers=options.num_workers,
        min_workers=options.min_workers,
        max_restarts=options.max_restarts,
        devices_per_worker=options.devices_per_worker,
        grace_seconds=options.grace,
    )
    if status == 128 + signal.SIGPIPE:
        # The rest of the output has no reader; Python would complain of that when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status
