"""The end of a command that Ctrl-C stopped, and that has said itself what is kept and how to go on."""

CODE = 130  # the exit code of a command that was interrupted


class Stopped(SystemExit):
    """Ends the command; nothing more is said."""

    def __init__(self) -> None:
        SystemExit.__init__(self, CODE)
