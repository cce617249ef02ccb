"""`databus sources`: what a relay captures."""

from databus.cli._app import (
    DEFAULT_RELAY,
    AsJson,
    CaFile,
    CertificateFile,
    KeyFile,
    RelayUrl,
    TokenFile,
    app,
    say_json,
    say_table,
)


@app.command(epilog="Example: databus sources --relay http://127.0.0.1:11115")
def sources(
    relay: RelayUrl = DEFAULT_RELAY,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    certificate_file: CertificateFile = None,
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """List the tables that a relay captures, with their ids, keys and schema versions."""
    from databus.link import Access, RelayClient

    found = RelayClient(relay, access=Access.of(token_file, ca_file, certificate_file, key_file)).sources()
    rows = [
        {
            "name": each.name,
            "id": each.id,
            "version": each.version,
            "key": ",".join(each.key),
            "fingerprint": f"{each.fingerprint:016x}",
        }
        for each in found
    ]
    if as_json:
        say_json(rows)
    else:
        say_table(["name", "id", "version", "key", "fingerprint"], rows)
