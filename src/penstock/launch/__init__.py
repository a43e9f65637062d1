"""Several processes of one program on this machine, to try out and test what is to run on many."""

from penstock.launch.supervisor import launch as launch
