"""Who may call, and over what: tokens, certificates, and the files that they are kept in. Knows no protocol."""
