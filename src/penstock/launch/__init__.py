"""Runs several processes of one program on this machine, to test what will run on many."""

from penstock.launch.supervisor import launch as launch
