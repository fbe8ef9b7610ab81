"""Exchange: export labels to files, import them from files, and exchange them with a running Label Studio."""
