"""The end of a command that Ctrl-C stopped, after it has printed how to continue."""

CODE = 130  # the exit code of a command that was interrupted


class Stopped(SystemExit):
    """Ends the command without another message."""

    def __init__(self) -> None:
        SystemExit.__init__(self, CODE)
