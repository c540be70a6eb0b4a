"""How long something takes, honestly: samples, when to stop, statistics. Nothing here knows a GPU."""
