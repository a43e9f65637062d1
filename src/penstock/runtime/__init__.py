"""How things run, knowing nothing of datasets: threads, channels, pacing."""
