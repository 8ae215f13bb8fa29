"""Formats as regular expressions: no library's own idea of one is trusted.

Each is what the format's standard says, or less where `NARROWED` says so.
"""

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_HOUR = "(?:[01][0-9]|2[0-3])"
_MINUTE = "[0-5][0-9]"
_TIME = rf"{_HOUR}:{_MINUTE}:{_MINUTE}(?:\.[0-9]{{1,9}})?(?:Z|[+-]{_HOUR}:{_MINUTE})"

_N = "[0-9]{1,9}"
_CLOCK = f"T(?:{_N}H(?:{_N}M(?:{_N}S)?)?|{_N}M(?:{_N}S)?|{_N}S)"
_DAYS = f"(?:{_N}Y(?:{_N}M(?:{_N}D)?)?|{_N}M(?:{_N}D)?|{_N}D)"
_DURATION = f"P(?:{_N}W|{_DAYS}(?:{_CLOCK})?|{_CLOCK})"


def _label(longest: int) -> str:
    return f"[A-Za-z0-9](?:[A-Za-z0-9-]{{0,{longest - 2}}}[A-Za-z0-9])?"


_HOST = rf"{_label(63)}(?:\.{_label(46)}){{0,4}}"  # 63 + 4 * 47 characters: never above the 253 of a name
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_EMAIL = rf"{_ATOM}{{1,31}}(?:\.{_ATOM}{{1,15}}){{0,2}}@{_HOST}"  # before the @: 31 + 2 * 16 of 64

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9][0-9]|[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_H16 = "[0-9A-Fa-f]{1,4}"
_LS32 = f"(?:{_H16}:{_H16}|{_IPV4})"
_IPV6 = "(?:" + (
    f"(?:{_H16}:){{6}}{_LS32}"
    f"|::(?:{_H16}:){{5}}{_LS32}"
    f"|(?:{_H16})?::(?:{_H16}:){{4}}{_LS32}"
    f"|(?:(?:{_H16}:)?{_H16})?::(?:{_H16}:){{3}}{_LS32}"
    f"|(?:(?:{_H16}:){{0,2}}{_H16})?::(?:{_H16}:){{2}}{_LS32}"
    f"|(?:(?:{_H16}:){{0,3}}{_H16})?::{_H16}:{_LS32}"
    f"|(?:(?:{_H16}:){{0,4}}{_H16})?::{_LS32}"
    f"|(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}"
    f"|(?:(?:{_H16}:){{0,6}}{_H16})?::)"
)

_ENCODED = "%[0-9A-Fa-f]{2}"
_PCHAR = f"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|{_ENCODED})"
_PCHAR_NO_COLON = f"(?:[A-Za-z0-9._~!$&'()*+,;=@-]|{_ENCODED})"
_AUTHORITY = f"(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|{_ENCODED})*@)?(?:[A-Za-z0-9._~!$&'()*+,;=-]|{_ENCODED})*(?::[0-9]*)?"
_ABSOLUTE = f"/(?:{_PCHAR}+(?:/{_PCHAR}*)*)?"
_TAIL = rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_NETWORK = f"//{_AUTHORITY}(?:/{_PCHAR}*)*"
_URI = f"[A-Za-z][A-Za-z0-9+.-]*:(?:{_NETWORK}|{_ABSOLUTE}|{_PCHAR}+(?:/{_PCHAR}*)*)?{_TAIL}"
_RELATIVE = f"(?:{_NETWORK}|{_ABSOLUTE}|{_PCHAR_NO_COLON}+(?:/{_PCHAR}*)*)?{_TAIL}"

_JSON_POINTER = "(?:/(?:[^~/]|~[01])*)*"

FORMATS: dict[str, str] = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "duration": f"^{_DURATION}$",
    "email": f"^{_EMAIL}$",
    "hostname": f"^{_HOST}$",
    "ipv4": f"^{_IPV4}$",
    "ipv6": f"^{_IPV6}$",
    "uuid": "^[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$",
    "uri": f"^{_URI}$",
    "uri-reference": f"^(?:{_URI}|{_RELATIVE})$",
    "json-pointer": f"^{_JSON_POINTER}$",
    "relative-json-pointer": f"^(?:0|[1-9][0-9]*)(?:#|{_JSON_POINTER})$",
}

NARROWED: dict[str, str] = {
    "date": "from the year 0001 on",
    "time": "no leap seconds, at most 9 digits of a second, a capital Z",
    "date-time": "from the year 0001 on, no leap seconds, at most 9 digits of a second, a capital T and Z",
    "duration": "at most 9 digits of each number",
    "email": "no quoted names, no addresses in brackets, names and hosts of a few parts",
    "hostname": "at most 5 labels, of at most 46 characters after the first",
    "uri": "no addresses in brackets",
    "uri-reference": "no addresses in brackets",
}
"""What of a format is not generated."""
