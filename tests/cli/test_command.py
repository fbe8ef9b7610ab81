"""What commands have in common: how they list what they left out."""

from labelwise.cli.command import echo_faults


def test_a_list_of_faults_says_how_many_are_not_shown(capsys):
    echo_faults("not sent", [f"row {row} is torn" for row in range(1, 1008)])
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines()[0] == "  not sent: row 1 is torn"
    assert shown.err.splitlines()[4:] == ["  not sent: row 5 is torn", "  and 1,002 more"]
    echo_faults("not sent", ["row 1 is torn"])
    assert "more" not in capsys.readouterr().err
    echo_faults("not sent", ())
    assert capsys.readouterr().err == ""
