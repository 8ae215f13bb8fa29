"""The files of `serve.tls`, read before anything else is: what is wrong with one is a line, and not a dead server."""

import ssl
from pathlib import Path

from rtk.config.serving import TlsConfig
from rtk.errors import ConfigError


def tls_context(config: TlsConfig) -> ssl.SSLContext | None:
    """What HTTPS is served with; None: plain HTTP. Raises `ConfigError` for files that cannot be used."""
    if config.cert_file is None:
        for name in ("key_file", "key_password", "client_ca_file"):
            if getattr(config, name) is not None:
                raise ConfigError(
                    f"serve.tls.{name} is set and serve.tls.cert_file is not; name the certificate's file"
                )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_certificate(context, config)
    if config.client_ca_file is not None:
        try:
            context.load_verify_locations(config.client_ca_file)
        except OSError as error:
            raise _unusable("client_ca_file", config.client_ca_file, error) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load_certificate(context: ssl.SSLContext, config: TlsConfig) -> None:
    assert config.cert_file is not None
    for name in ("cert_file", "key_file"):
        if (path := getattr(config, name)) is not None:
            try:
                path.read_bytes()
            except OSError as error:
                raise _unusable(name, path, error) from None
    password = None if config.key_password is None else config.key_password.get_secret_value()
    asked = False

    def given() -> str:
        nonlocal asked
        asked = True
        return password or "-"  # some text: with none, OpenSSL asks whoever sits at the terminal

    try:
        context.load_cert_chain(config.cert_file, config.key_file, given)
    except OSError as error:  # ssl.SSLError is one
        name = "cert_file" if config.key_file is None else "key_file"
        if asked:
            why = "is wrong" if password else "is missing"
            raise ConfigError(
                f"serve.tls.{name} = '{config.key_file or config.cert_file}': the key is encrypted, and "
                f"serve.tls.key_password {why}"
            ) from None
        if "MISMATCH" in str(error):
            raise ConfigError(
                f"serve.tls.key_file = '{config.key_file}': it is not the key of the certificate in {config.cert_file}"
            ) from None
        raise ConfigError(
            f"serve.tls.cert_file = '{config.cert_file}': no certificate with its private key can be read from "
            f"{_both(config)}; both must be PEM"
        ) from None


def _both(config: TlsConfig) -> str:
    return f"it and {config.key_file}" if config.key_file else "it (serve.tls.key_file names another for the key)"


def _unusable(name: str, path: Path, error: OSError) -> ConfigError:
    why = "no certificate in PEM can be read from it" if not error.errno or not error.strerror else error.strerror
    if type(error).__name__ == "SSLError":
        why = "no certificate in PEM can be read from it"
    return ConfigError(f"serve.tls.{name} = '{path}': {why}")
