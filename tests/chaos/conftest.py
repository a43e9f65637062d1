"""What is beside this file is a program: `make chaos`."""

collect_ignore_glob = ["[!t]*.py", "trial.py"]
