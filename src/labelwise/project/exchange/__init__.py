"""Exchange: labels of a project to files and from files, and to and from a running Label Studio."""
